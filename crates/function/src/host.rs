//! What the front asks of whatever starts instances.

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// Starts instances. Its calls block, and are made by threads that may.
pub trait Host: Send + Sync + 'static {
    /// Restores an instance that can be connected to.
    ///
    /// # Errors
    /// Why there is none; then nothing of it is left.
    fn start(&self) -> Result<Box<dyn Instance>, StartError>;

    /// Tells the user of something that has gone wrong, in one line.
    fn warn(&self, text: &str);
}

/// An instance. Its calls block.
pub trait Instance: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Connects to the socket at which its program listens.
    ///
    /// # Errors
    /// The program does not listen any more.
    fn connect(&self) -> io::Result<Link>;

    /// Its connection broke: whether it is again as it was when it was started, so that the request it had can be
    /// repeated. Waits while it is being brought there.
    fn came_back(&self) -> bool;

    /// Ends it; returns when nothing of it is left.
    fn end(&self);
}

/// A connection to an instance.
#[derive(Debug)]
pub enum Link {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

/// Why an instance could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// One sentence.
    pub message: String,
    /// What to do next; may be empty.
    pub hint: String,
}
