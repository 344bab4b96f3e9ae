//! The driver API as a program uses it, on two devices with default settings.

#[path = "../common/mod.rs"]
mod common;

mod basics;
mod conditional;
mod graphs;
mod greens;
mod ipc;
mod launches;
mod libraries;
mod linking;
mod mipmaps;
mod references;
mod sticky;
mod streams;
mod textures;
mod vmm;
