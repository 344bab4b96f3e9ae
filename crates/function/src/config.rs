//! How a function is served.

use std::time::Duration;

/// How a function is served.
#[derive(Debug, Clone)]
pub struct FrontConfig {
    /// The function's name, for the metrics.
    pub name: String,
    /// How long an instance that has answered is kept for the next request.
    pub keep: Duration,
    /// The most instances at once; at least 1.
    pub most: usize,
    /// The most requests that wait beyond those for which an instance is being started.
    pub queue: usize,
    /// How long a request waits for an instance.
    pub wait: Duration,
    /// How long an instance may take for its whole answer.
    pub limit: Duration,
    /// The most bytes of a request's body.
    pub body: usize,
}
