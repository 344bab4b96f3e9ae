//! Chunks, packs, manifests, images: bytes and hashes on disk.
