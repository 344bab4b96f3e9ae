//! Task `rpc`: the messages of CRIU's protocol in Rust, from the description in crates/daemon/rpc.proto.
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prost_build::{Config, Module};

use crate::output::{Generated, rustfmt};

/// The description, below the workspace folder.
const FOLDER: &str = "crates/daemon";
const PROTO: &str = "rpc.proto";
/// What is made of it.
const MESSAGES: &str = "crates/daemon/src/criu/rpc.rs";

/// The messages' file.
pub fn messages(root: &Path) -> Result<Generated> {
    let described = protox::compile([PROTO], [root.join(FOLDER)])
        .with_context(|| format!("cannot understand `{FOLDER}/{PROTO}`"))?;
    let module = Module::from_protobuf_package_name("");
    let described = described.file.into_iter();
    let requests = described.map(|file| (module.clone(), file)).collect();
    let made = Config::new().generate(requests)?;
    let made = made
        .get(&module)
        .context("the description has no messages")?;
    let text = format!(
        "//! The messages of CRIU's RPC that are used here: made of `{PROTO}` by `cargo xtask rpc`.\n\n{made}"
    );
    let text = rustfmt(&text)?;
    Ok(Generated {
        path: PathBuf::from(MESSAGES),
        text,
    })
}
