//! Executes one launch of an executable graph.

use std::sync::Arc;

use super::{Condition, HeldObjects, Root};
use crate::error::Result;
pub use crate::objects::Run;
use crate::objects::{Context, Work};

impl Run {
    /// A launch of these steps of what was made from `root` and holds `users`.
    pub fn new(
        root: &Arc<Root>,
        users: Arc<HeldObjects>,
        conditions: Vec<Arc<Condition>>,
        steps: Vec<Work>,
    ) -> Self {
        Self {
            _root: Arc::clone(root),
            users,
            conditions,
            steps,
        }
    }

    /// Passes the marks of steps that will never be executed, so that no thread waits for them.
    pub fn abandon(&self) {
        for step in &self.steps {
            if let Work::Record(mark) = step {
                mark.pass();
            }
        }
    }

    /// Executes the steps. After a fault, the remaining steps only pass their marks.
    ///
    /// # Errors
    /// The first fault.
    pub fn execute(&self, context: &Arc<Context>) -> Result {
        let mut result = Ok(());
        for condition in &self.conditions {
            condition.begin();
        }
        for step in &self.steps {
            if let Err(error) = step.run(context) {
                context.fail(error);
                result = result.and(Err(error));
            }
        }
        result
    }
}
