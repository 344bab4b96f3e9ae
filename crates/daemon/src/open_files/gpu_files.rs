//! Device files of GPUs in a program, which CRIU cannot dump: which library opened them, and what can be done.

use std::collections::BTreeSet;

use fermata_hostmem::Maps;

/// What the files of GPU devices begin with.
pub const GPU: &str = "/dev/nvidia";
/// What the names of libraries of NVIDIA's driver begin with, which open those files.
const DRIVER: [&str; 9] = [
    "libcuda.so",
    "libnvidia-",
    "libnvcuvid.so",
    "libnvoptix.so",
    "libEGL_nvidia.so",
    "libGLX_nvidia.so",
    "libGLESv2_nvidia.so",
    "libvdpau_nvidia.so",
    "libcudadebugger.so",
];
/// Ours of the same names.
const OURS: &str = "/lib/client/";

/// Which library in a process opened a GPU device, as words after a message, and what can be done.
pub fn opened_by(maps: &Maps) -> (String, String) {
    let of_driver = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        DRIVER.iter().any(|it| name.starts_with(it)) && !path.contains(OURS)
    };
    let files = maps.files().map(|it| it.to_string_lossy().into_owned());
    let found: BTreeSet<String> = files.filter(of_driver).collect();
    if found.is_empty() {
        let hint = "no library of NVIDIA's driver is in the process: the program opens the device itself, or has \
                    inherited it from what has started it; close it before the checkpoint";
        return (String::new(), hint.to_owned());
    }
    let paths: Vec<String> = found.iter().map(|path| format!("`{path}`")).collect();
    let name = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        let (stem, _) = file.split_once(".so").unwrap_or((file, ""));
        format!("`{stem}.so.1`")
    };
    let ours = ["libcuda.so", "libnvidia-ml.so"];
    let ours = found.iter().filter(|path| {
        let file = path.rsplit('/').next().unwrap_or_default();
        ours.iter().any(|it| file.starts_with(it))
    });
    let names: BTreeSet<String> = ours.map(|path| name(path)).collect();
    let names: Vec<String> = names.into_iter().collect();
    let opencl = found.iter().any(|path| path.contains("opencl"));
    let hint = match names.is_empty() {
        true if opencl => "OpenCL opens the GPU within the program: do without it. Where a library only lists its devices, as \
                           hwloc does for MPI, `HWLOC_COMPONENTS=-opencl` in the program's environment keeps it from that"
            .to_owned(),
        true => "Fermata has no library that takes its place: do without it until the checkpoint"
            .to_owned(),
        false => format!(
            "the program has loaded it by a path, or `LD_PRELOAD` was cleared for it: load {} by name, and Fermata's \
             own is found",
            names.join(" and ")
        ),
    };
    (format!(", through {}", paths.join(" and ")), hint)
}

/// A GPU device that is mapped; it may be so after its descriptor was closed.
pub fn mapped_device(maps: &Maps) -> Option<&str> {
    let mut names = maps.files().filter_map(|it| it.to_str());
    names.find(|path| path.starts_with(GPU))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opened_a_gpu_is_named() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 42    {path}\n");
        let ours = line("/opt/fermata/lib/client/libcuda.so.1")
            + &line("/opt/fermata/lib/client/libnvidia-ml.so.1");
        let opened_by = |maps: &str| opened_by(&Maps::from(maps));
        let (by, hint) = opened_by(&ours);
        assert!(by.is_empty() && hint.contains("the program opens the device itself"));
        let (by, hint) = opened_by(&(ours.clone() + &line("/usr/lib/libnvidia-ml.so.580.82")));
        assert_eq!(by, ", through `/usr/lib/libnvidia-ml.so.580.82`");
        assert!(hint.contains("load `libnvidia-ml.so.1` by name"), "{hint}");
        let (_, hint) = opened_by(&(ours.clone() + &line("/usr/lib/libnvidia-opencl.so.580.82")));
        assert!(hint.contains("HWLOC_COMPONENTS=-opencl"), "{hint}");
        let (by, hint) = opened_by(&(ours + &line("/usr/lib/libnvcuvid.so.580.82")));
        assert_eq!(by, ", through `/usr/lib/libnvcuvid.so.580.82`");
        assert!(hint.contains("no library that takes its place"), "{hint}");
    }

    #[test]
    fn a_mapped_device_is_found() {
        let maps = Maps::from("7f00-7f01 rw-s 00000000 00:05 42    /dev/nvidia0\n");
        assert_eq!(mapped_device(&maps), Some("/dev/nvidia0"));
        let maps = Maps::from("7f00-7f01 r-xp 0 08:01 42 /usr/lib/libc.so\n");
        assert_eq!(mapped_device(&maps), None);
    }
}
