//! What the processes of a program have open: files, sockets, pipes, devices. Which of it CRIU can dump, and what an image
//! must hold beside CRIU's files.

pub mod folders;
pub mod gpu_files;
pub mod input;
pub mod listening;
mod owner;
mod sockets;
pub mod tcp;
pub mod temporary;
pub mod unix_sockets;
