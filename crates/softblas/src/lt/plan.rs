//! Turns the descriptions of a cuBLASLt call into one product of `kernels/blas.cu`.

use crate::kernels::{self, Steps};
use crate::lt::objects::{Description, Layout};
use crate::request::{Types, extent, transposes};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::types::{self, Element};

/// A product without addresses and factors.
#[derive(Debug)]
pub struct Plan {
    /// Types of its elements.
    pub types: Types,
    /// Everything but addresses and factors.
    pub product: kernels::Product,
}

/// Bits of a `cublasLtEpilogue_t`.
const RELU: i64 = 2;
const BIAS: i64 = 4;
const GELU: i64 = 32;
/// With none of the others.
const NOTHING: i64 = 1;

fn element(layout: &Layout) -> Result<Element> {
    Element::from_c(i32::try_from(layout.kind).map_err(|_| INVALID_VALUE)?)
}

/// Rows, columns and steps of a matrix after its operation.
fn matrix(layout: &Layout, operation: i64) -> Result<(u32, u32, Steps)> {
    let turned = transposes(i32::try_from(operation).map_err(|_| INVALID_VALUE)?)?;
    let (rows, cols) = (extent(layout.rows)?, extent(layout.cols)?);
    let (row, col, line) = match layout.order {
        0 => (1, layout.leading, rows),
        1 => (layout.leading, 1, cols),
        _ => return Err(NOT_SUPPORTED),
    };
    if layout.leading < i64::from(line) {
        return Err(INVALID_VALUE);
    }
    let batch = layout.next;
    Ok(if turned {
        let steps = Steps {
            row: col,
            col: row,
            batch,
        };
        (cols, rows, steps)
    } else {
        (rows, cols, Steps { row, col, batch })
    })
}

impl Plan {
    /// How a product of these matrices is computed.
    ///
    /// # Errors
    /// They do not go together, or there is no kernel.
    pub fn new(product: &Description, [a, b, c, d]: [&Layout; 4]) -> Result<Self> {
        let compute = i32::try_from(product.compute).map_err(|_| INVALID_VALUE)?;
        let types = Types {
            a: element(a)?,
            b: element(b)?,
            c: element(d)?,
            scale: types::scale(compute)?,
        };
        let scale = i32::try_from(product.scale).map_err(|_| INVALID_VALUE)?;
        if element(c)? != types.c || Element::from_c(scale)? != types.scale {
            return Err(NOT_SUPPORTED);
        }
        types::kernel(types.a, types.b, types.c, types.scale)?;
        let [turn_a, turn_b, turn_c] = product.operations;
        let (m, k, a_steps) = matrix(a, turn_a)?;
        let (inner, n, b_steps) = matrix(b, turn_b)?;
        let (c_rows, c_cols, c_steps) = matrix(c, turn_c)?;
        let (d_rows, d_cols, d_steps) = matrix(d, 0)?;
        let batch = extent(d.batch)?;
        let same = [a, b, c].iter().all(|it| it.batch == d.batch);
        if inner != k || [c_rows, d_rows] != [m; 2] || [c_cols, d_cols] != [n; 2] || !same {
            return Err(INVALID_VALUE);
        }
        let (bias, activation) = match product.epilogue {
            NOTHING => (false, 0),
            BIAS => (true, 0),
            RELU => (false, 1),
            GELU => (false, 2),
            it if it == RELU | BIAS => (true, 1),
            it if it == GELU | BIAS => (true, 2),
            _ => return Err(NOT_SUPPORTED),
        };
        if bias && ![-1, d.kind].contains(&product.bias_type) {
            return Err(NOT_SUPPORTED);
        }
        let product = kernels::Product {
            bias: if bias { product.bias as u64 } else { 0 },
            bias_batch: product.bias_batch,
            a_steps,
            b_steps,
            c_steps,
            d_steps,
            m,
            n,
            k,
            batch,
            activation,
            ..kernels::Product::default()
        };
        Ok(Self { types, product })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(rows: i64, cols: i64, leading: i64) -> Layout {
        Layout {
            rows,
            cols,
            leading,
            batch: 1,
            ..Layout::default()
        }
    }

    fn product() -> Description {
        Description {
            compute: 68,
            epilogue: NOTHING,
            bias_type: -1,
            ..Description::default()
        }
    }

    #[test]
    fn operations_and_orders_become_steps() -> Result {
        let a = layout(5, 2, 6);
        let b = Layout {
            order: 1,
            ..layout(5, 3, 4)
        };
        let d = layout(2, 3, 2);
        let turned = Description {
            operations: [1, 0, 0],
            ..product()
        };
        let plan = Plan::new(&turned, [&a, &b, &d, &d])?.product;
        assert_eq!((plan.m, plan.n, plan.k), (2, 3, 5));
        assert_eq!((plan.a_steps.row, plan.a_steps.col), (6, 1));
        assert_eq!((plan.b_steps.row, plan.b_steps.col), (4, 1));
        assert_eq!((plan.d_steps.row, plan.d_steps.col), (1, 2));
        Ok(())
    }

    #[test]
    fn matrices_that_do_not_go_together_are_refused() {
        let (a, b, d) = (layout(2, 5, 2), layout(4, 3, 4), layout(2, 3, 2));
        let plan = Plan::new(&product(), [&a, &b, &d, &d]);
        assert_eq!(plan.err(), Some(INVALID_VALUE));
    }

    #[test]
    fn an_epilogue_that_is_not_computed_is_refused() {
        let (a, b, d) = (layout(2, 5, 2), layout(5, 3, 5), layout(2, 3, 2));
        // The gradients of GELU, and that of the bias.
        for epilogue in [192, 256] {
            let other = Description {
                epilogue,
                ..product()
            };
            let plan = Plan::new(&other, [&a, &b, &d, &d]);
            assert_eq!(plan.err(), Some(NOT_SUPPORTED));
        }
    }
}
