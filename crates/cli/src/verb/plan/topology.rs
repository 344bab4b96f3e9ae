//! `fermata plan topology`.

use fermata_report::table::Table;
use fermata_report::units;
use serde_json::json;

use super::machine::{Machine, here, room, topology_of};
use crate::failure::Failure;
use crate::printer::Printer;

/// How a machine's GPUs are linked.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata plan topology
  fermata plan topology --json > machine.json
  fermata plan schedule --topology machine.json --sizes 40,10,5,5 --free 16,16,16,16

What NVML says is what links could give; the rates are what copies got of that on an H200. Measured ones can be
written into the file.")]
pub struct Args {
    /// Which machine.
    #[arg(long, value_enum, default_value = "here")]
    machine: Machine,
    /// GPUs, for machines of any size.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
}

pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let gpus = match args.machine {
        Machine::Here => here()?,
        _ => Vec::new(),
    };
    let topology = match args.machine {
        Machine::Here => topology_of(&gpus),
        known => known.topology(args.gpus)?,
    };
    if printer.is_json() {
        let mut value = json!(topology);
        if let (Some(fields), Machine::Here) = (value.as_object_mut(), args.machine) {
            let names: Vec<_> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
            fields.insert("names".into(), json!(names));
            fields.insert("free".into(), json!(room(&gpus)));
        }
        printer.document(&value)?;
        return Ok(0);
    }
    let rate = |rate: f64| format!("{:.1}", rate / 1e9);
    let mut header = vec!["GPU".to_owned(), "HOST GB/S".into(), "PORT GB/S".into()];
    header.extend((0..topology.host.len()).map(|j| format!("TO {j}")));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(&header);
    for (i, links) in topology.links.iter().enumerate() {
        let port = topology.port_out.as_ref().map(|ports| rate(ports[i]));
        let mut row = vec![
            i.to_string(),
            rate(topology.host[i]),
            port.unwrap_or_else(|| "-".into()),
        ];
        row.extend(links.iter().map(|link| match *link > 0.0 {
            true => rate(*link),
            false => "-".into(),
        }));
        table.row(row);
    }
    printer.data(&table.render())?;
    for (i, (gpu, free)) in gpus.iter().zip(room(&gpus)).enumerate() {
        let free = units::bytes(free);
        printer.data(&format!("GPU {i}: {}, {free} may be used\n", gpu.name))?;
    }
    Ok(0)
}
