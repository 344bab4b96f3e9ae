//! The driver library a program sees: it forwards every call to the worker.
