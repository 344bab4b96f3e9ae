//! Graphs: placeholder types until graphs are executed.
use std::sync::Arc;
use crate::context::Context;
use crate::error::{NOT_SUPPORTED, Result};
#[derive(Debug)] pub struct Exec;
#[derive(Debug)] pub struct GraphObject;
#[derive(Debug)] pub struct NodeRef;
#[derive(Debug)] pub struct UserObject;
#[derive(Debug)] pub struct Run;
impl Run { pub fn execute(&self, _c: &Arc<Context>) -> Result { Err(NOT_SUPPORTED) } }
