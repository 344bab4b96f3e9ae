//! Sessions, worker pool, CRIU, supervision.
