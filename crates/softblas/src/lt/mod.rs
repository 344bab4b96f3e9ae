//! cuBLASLt: products described by objects.
//!
//! ```text
//!   objects: descriptions of products and matrices, set one attribute at a time
//!      └─► plan: what they come to, or why no kernel computes it
//!             ├─ matmul: the heuristic and the check of an algorithm answer whether there is a plan
//!             └─ matmul: a product launches it
//! ```

mod matmul;
mod objects;
mod plan;
