//! `fermata function serve`.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::Endpoint;
use fermata_function::{FrontConfig, Functions, METRICS_PATH, Stop};
use fermata_report::units;
use fermata_store::image::Image;
use serde_json::json;

use super::super::Device;
use super::instances::Instances;
use super::seconds::{seconds, seconds_or_none};
use crate::daemon::Daemon;
use crate::failure::{Failure, INTERNAL, USER};
use crate::printer::Printer;
use crate::{attend, place};

/// Serve requests from instances of a function.
///
/// Each request gets an instance to itself: one that has answered before and is kept, or one that is restored for it.
/// Further requests wait in a queue. An answer says `fermata-start: cold` or `warm`. SIGTERM and Ctrl-C finish the
/// requests under way and end the instances; a second one ends them at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function serve llama --port 8080
  fermata function serve llama --port 8080 --most 8 --keep 300
  fermata function serve llama --address 0.0.0.0 --port 80     for other machines
  curl http://127.0.0.1:8080/-/metrics")]
pub struct Args {
    /// The function.
    name: String,
    /// The port; 0 is a free one.
    #[arg(long)]
    port: u16,
    /// The address to listen at.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// How long an instance that has answered is kept for the next request; 0: each request gets a fresh one.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds_or_none)]
    keep: Duration,
    /// The most instances at once; 4 if not given, and 1 if the program listens at a path.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    most: Option<u32>,
    /// How many requests may wait for an instance; further ones get status 503.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// How long a request waits for an instance until it gets status 503.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    wait: Duration,
    /// How long an instance may take for its answer; then the request gets status 504, and the instance is ended.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    limit: Duration,
    /// The largest request.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::parse_bytes)]
    body: u64,
    /// Priority of the instances: one that lacks device memory gets that of sessions of lower priority, which are paused meanwhile.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    priority: Option<i32>,
    /// Which device the instances get; the kind that the program had if absent.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let record = Functions::of(&place::images()).load(&args.name)?;
    let most = match (&record.listens, args.most) {
        (Endpoint::Unix(path), Some(2..)) if !path.lossy().starts_with('@') => {
            let text = format!(
                "function `{}` listens at `{}`, which only one instance can have",
                args.name,
                path.lossy()
            );
            return Err(Failure::new(USER, text)
                .hint("let the program listen at a TCP port or at a Unix socket `@NAME`"));
        }
        (Endpoint::Unix(path), None) if !path.lossy().starts_with('@') => 1,
        (_, most) => most.unwrap_or(4),
    };
    Image::open(&record.image).map_err(|error| {
        let hint = "make the function again with `fermata function create --replace`";
        Failure::from(error).hint(hint)
    })?;
    let mut signals = attend::catch()?;
    // Its errors are the user's now, not the first client's later.
    Daemon::reach(printer)?;
    let place = (args.address, args.port);
    let listener = TcpListener::bind(place).map_err(|error| {
        let hint = "`ss -lntp` says who has the port; `--port 0` takes a free one";
        Failure::io(&format!("listen at {}:{}", place.0, place.1), &error).hint(hint)
    })?;
    let address = listener.local_addr();
    let address = address.map_err(|error| Failure::io("find out the port", &error))?;
    let config = FrontConfig {
        name: args.name.clone(),
        keep: args.keep,
        most: most as usize,
        queue: args.queue,
        wait: args.wait,
        limit: args.limit,
        body: usize::try_from(args.body).unwrap_or(usize::MAX),
    };
    let instances = Instances {
        image: record.image,
        listens: record.listens,
        device: args.device.into(),
        priority: args.priority,
        printer: printer.clone(),
    };
    let stop = Stop::default();
    let asks = stop.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(|_| asks.ask()))
        .map_err(|error| Failure::new(INTERNAL, format!("cannot start a thread: {error}")))?;
    match printer.is_json() {
        true => printer.document(
            &json!({ "function": args.name, "url": format!("http://{address}"),
            "metrics": format!("http://{address}{METRICS_PATH}"), "most": most }),
        )?,
        false => printer.data(&format!("http://{address}\n"))?,
    }
    let instances = Arc::new(instances);
    let first = Arc::clone(&instances);
    // Without a thread the first request waits for longer.
    let _ = std::thread::Builder::new()
        .name("warm".into())
        .spawn(move || first.warm());
    fermata_function::serve(listener, config, instances, &stop)
        .map_err(|error| Failure::io("serve", &error))?;
    Ok(0)
}
