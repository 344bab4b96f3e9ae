//! Versioned control messages over Unix sockets, and their client.
