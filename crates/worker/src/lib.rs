//! The process that owns a program's GPU contexts: serves its ring and hosts the engine.
