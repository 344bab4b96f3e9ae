//! The image's folder: chooses its place, checks the space, and makes its manifest.

use std::fs;
use std::path::{Path, PathBuf};

use fermata_control::user::Text;
use fermata_control::worker::{FailureKind, Miss, Timeline};
use fermata_store::image::{
    DeviceRecord, HostRecord, Image, Manifest, MissRecord, Program, SessionTotals, StallRecord,
    TimelineRecord, ValidationRecord, next_name,
};

use super::parts::Parts;
use crate::criu::Criu;
use crate::daemon::Daemon;
use crate::failure::{Hint, Result, fail, from_store};
use crate::images::space::{self, Needs};
use crate::phases::Phases;
use crate::proc::{self, ProcessId};
use crate::session::Session;
use crate::worker::Worker;

/// Folder and name for a new image of the session or program `base`.
pub(crate) fn target(
    daemon: &Daemon,
    base: &str,
    output: Option<&Text>,
) -> Result<(PathBuf, String)> {
    let Some(output) = output else {
        let images = daemon.paths.images.clone();
        let name = next_name(&images, base).map_err(|e| from_store(&e))?;
        return Ok((images, name));
    };
    let path = output.to_path();
    let bad = |why: &str| {
        let message = format!("`{}` cannot be an image's path: {why}", path.display());
        fail(FailureKind::User, message)
    };
    let name = path
        .file_name()
        .ok_or_else(|| bad("it ends without a name"))?;
    let name = name.to_str().ok_or_else(|| {
        bad("its name is not UTF-8")
            .hint("choose another name; the folder that it lies in may have any")
    })?;
    let name = name.to_owned();
    match path.parent() {
        Some(folder) if folder.is_absolute() => Ok((folder.to_owned(), name)),
        Some(folder) if folder.as_os_str().is_empty() => Ok((daemon.paths.images.clone(), name)),
        _ => Err(bad("it is not absolute").hint("the daemon needs an absolute path")),
    }
}

/// Space required beyond the bytes that are known to be needed.
const MARGIN: u64 = 16 << 20;

/// Refuses if the image cannot fit; for its chunks `ready` bytes are already reserved. If the session has an image in
/// `folder` or in the daemon's image folder, most of its data may be in the store: then only the space for its other files must be
/// free, and if the disk fills up nevertheless, the checkpoint fails. Returns how many bytes the image may take on the file system
/// of `folder`.
///
/// # Errors
/// `User`, with the numbers.
pub(super) fn check_space(
    daemon: &Daemon,
    session: &Session,
    root: ProcessId,
    folder: &Path,
    ready: u64,
) -> Result<u64> {
    let store = daemon.paths.store();
    let mut needs = needs(session, root)?;
    needs.chunks = needs.chunks.saturating_sub(ready);
    let enough = needs.check(folder, &store);
    let folders = [folder, daemon.paths.images.as_path()];
    enough.or_else(|refusal| match newest(&folders, session) {
        Some(image) => space::check_space(folder, image.manifest().host_bytes() + MARGIN),
        None => Err(refusal),
    })?;
    Ok(needs.at(folder, &store))
}

/// The session's newest image in these folders.
pub(crate) fn newest<P: AsRef<Path>>(folders: &[P], session: &Session) -> Option<Image> {
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let images = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter_map(|entry| Image::open(&entry.path()).ok())
        .filter(|image| image.manifest().session == session.name);
    images.max_by(|a, b| a.manifest().created.cmp(&b.manifest().created))
}

/// What the image takes if the store has none of its chunks.
fn needs(session: &Session, root: ProcessId) -> Result<Needs> {
    let (workers, paused) = {
        let inner = session.lock();
        (inner.workers(), inner.paused().map(|it| it.data.clone()))
    };
    let files = space::resident_bytes(root.pid) + MARGIN;
    let chunks = paused.map_or(0, |it| it.device_bytes + it.host_bytes);
    let chunks = workers.into_iter().try_fold(chunks, |bytes, worker| {
        match worker.held_bytes() {
            Ok(held) => Ok(bytes + held),
            // Its process has ended, and will not be in the image.
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(bytes),
            Err(failure) => Err(failure),
        }
    })?;
    Ok(Needs { files, chunks })
}

/// Makes the manifest.
pub(super) fn describe(
    session: &Session,
    criu: &Criu,
    root: ProcessId,
    parts: &Parts,
    phases: &Phases,
) -> Result<Manifest> {
    let uname = rustix::system::uname();
    let device = &parts.device;
    let devices = match &parts.paused {
        Some(entry) => entry.devices.clone(),
        None => devices_of(parts.parked.iter().map(|it| &*it.worker)),
    };
    let mut manifest = Manifest {
        fermata_version: env!("CARGO_PKG_VERSION").into(),
        session: session.name.clone(),
        mode: parts.mode.name().into(),
        program: Program {
            argv: session.argv.clone(),
            cwd: session.cwd.clone(),
            executable: proc::executable(root.pid)
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
            pid: parts.record.root,
        },
        host: HostRecord {
            hostname: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            criu: criu.version()?,
        },
        devices,
        totals: SessionTotals {
            allocations: device.allocations,
            device_bytes: device.device_bytes,
            host_bytes: device.host_bytes,
            objects: device.objects,
            memory_bytes: parts.memory.bytes,
            chunks: device.chunks + parts.memory.chunks,
            written_bytes: device.written_bytes + parts.memory.new_bytes,
            seconds: phases.seconds(),
            stopped_seconds: parts.stopped_seconds,
        },
        phases: phases.recorded(),
        stall: StallRecord {
            waits: device.stall.waits,
            waited_seconds: device.stall.waited_seconds,
            issuing_seconds: device.stall.issuing_seconds,
            isolated_bytes: device.stall.isolated_bytes,
            pool_bytes: device.stall.pool_bytes,
            incomplete: device.stall.incomplete,
            copying_seconds: device.stall.copying_seconds,
            overtaken: parts.overtaken,
            timeline: timeline(&device.stall.timeline),
        },
        validation: ValidationRecord {
            by: device.validation.by.name().into(),
            note: device.validation.note.clone(),
            checked: device.validation.checked,
            unchecked: device.validation.unchecked,
            violations: device.validation.violations,
            misses: device.validation.misses.iter().map(miss).collect(),
        },
        ..Manifest::default()
    };
    parts.record.store(&mut manifest)?;
    Ok(manifest)
}

/// The devices of these workers, each once.
pub(crate) fn devices_of<'w>(workers: impl Iterator<Item = &'w Worker>) -> Vec<DeviceRecord> {
    let mut devices: Vec<DeviceRecord> = Vec::new();
    for worker in workers {
        let found = worker.devices.iter().map(|d| DeviceRecord {
            name: d.name.clone(),
            uuid: d.uuid.clone(),
            memory: d.memory,
            compute_capability: d.compute_capability,
            driver_version: worker.driver_version,
            soft: worker.driver.soft,
        });
        // Two processes may use the same device, or each its own.
        for device in found {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
    }
    devices
}

fn timeline(line: &Timeline) -> TimelineRecord {
    TimelineRecord {
        start: line.start,
        span: line.span,
        copied: line.copied.clone(),
        aside: line.aside.clone(),
        waited: line.waited.clone(),
    }
}

fn miss(miss: &Miss) -> MissRecord {
    MissRecord {
        kernel: miss.kernel.clone(),
        address: format!("{:#x}", miss.address),
        bytes: miss.bytes,
        buffer: miss.buffer,
    }
}

/// Bytes of the files in a folder.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.len())
        .sum()
}
