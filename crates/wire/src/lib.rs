//! Shared-memory rings between program and worker, the handshake and the passing of descriptors.
