//! How often predictions were right, for each kernel (PhoenixOS, table 3).

use fermata_control::trace::{Kernel, Trace};

use crate::table::Table;

const HEADER: [&str; 8] = [
    "kernel",
    "launches",
    "complete",
    "checked",
    "mispredicted",
    "wrongly_complete",
    "first_miss",
    "unchecked",
];

fn cells(kernel: &Kernel) -> [String; 8] {
    let miss = kernel
        .first_miss
        .map(|(address, bytes)| format!("{bytes} bytes at {address:#x}"));
    [
        kernel.name.clone(),
        kernel.launches.to_string(),
        kernel.complete.to_string(),
        kernel.checked.to_string(),
        kernel.mispredicted.to_string(),
        kernel.wrongly_complete.to_string(),
        miss.unwrap_or_default(),
        kernel.unchecked.clone().unwrap_or_default(),
    ]
}

/// Sums over all kernels: kernels, those that failed, launches, those that failed.
fn sums(trace: &Trace) -> [u64; 4] {
    let failed = |kernel: &&Kernel| kernel.mispredicted > 0;
    [
        trace.kernels.len() as u64,
        trace.kernels.iter().filter(failed).count() as u64,
        trace.kernels.iter().map(|it| it.launches).sum(),
        trace.kernels.iter().map(|it| it.mispredicted).sum(),
    ]
}

/// One line for each kernel.
pub fn csv(trace: &Trace) -> String {
    let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "'"));
    let line = |cells: &[String]| cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    let rows = trace.kernels.iter().map(|kernel| line(&cells(kernel)));
    HEADER.join(",") + "\n" + &rows.collect::<String>()
}

/// For people, with the sums below.
pub fn table(trace: &Trace) -> String {
    let names = HEADER.map(|name| name.to_uppercase().replace('_', " "));
    let mut table = Table::new(&names.each_ref().map(String::as_str));
    for kernel in &trace.kernels {
        table.row(cells(kernel));
    }
    let [kernels, failed, launches, mispredicted] = sums(trace);
    format!(
        "{}kernels {kernels}, failed {failed}; launches {launches}, failed {mispredicted}; \
         graph launches {}, of which open {}\n",
        table.render(),
        trace.graph_launches,
        trace.open_graph_launches
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_rows_agree() {
        let kernel = |name: &str, launches, mispredicted| Kernel {
            name: name.to_owned(),
            launches,
            mispredicted,
            first_miss: (mispredicted > 0).then_some((0x1000, 4)),
            ..Kernel::default()
        };
        let trace = Trace {
            kernels: vec![kernel("a", 10, 0), kernel("b", 5, 2)],
            ..Trace::default()
        };
        assert!(table(&trace).contains("kernels 2, failed 1; launches 15, failed 2;"));
        assert_eq!(csv(&trace).lines().count(), 3);
        assert!(csv(&trace).contains("\"4 bytes at 0x1000\""));
    }
}
