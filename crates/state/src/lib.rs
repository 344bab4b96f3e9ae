//! The object graph of a session and its versioned records.
