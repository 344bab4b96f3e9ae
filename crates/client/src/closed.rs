//! Who carries a static CUDA runtime: the program, or a closed library such as cuBLAS; and what is said of it.

/// Frames looked at: ours, and the one that has called us.
const FRAMES: usize = 16;

/// The message for whoever asks for the driver's undocumented tables, as the static runtime does.
pub fn why_refused() -> String {
    let mut frames = [core::ptr::null_mut(); FRAMES];
    // SAFETY: the buffer has room for so many.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as libc::c_int) };
    let frames = frames.iter().take(usize::try_from(count).unwrap_or(0));
    let frames: Vec<usize> = frames.map(|frame| frame.addr()).collect();
    // Where these cannot be read nothing more can be said.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let own = (why_refused as fn() -> String as *const ()).addr();
    let caller = caller(&maps, own, &frames).filter(|path| program.as_os_str() != *path);
    message(caller.and_then(|path| path.rsplit('/').next()))
}

fn message(library: Option<&str>) -> String {
    match library {
        None => "the program carries the static CUDA runtime, which needs undocumented driver tables; build it with \
                 nvcc's option `-cudart shared`"
            .to_owned(),
        Some(name) => format!(
            "`{name}` carries a CUDA runtime of its own, which needs undocumented driver tables: what calls it cannot \
             be run yet"
        ),
    }
}

/// The file behind the first of `frames` that is not in the file that `own` is in.
fn caller<'m>(maps: &'m str, own: usize, frames: &[usize]) -> Option<&'m str> {
    let ours = file_at(maps, own)?;
    let mut files = frames.iter().filter_map(|frame| file_at(maps, *frame));
    files.find(|file| *file != ours)
}

/// The mapped file at an address.
fn file_at(maps: &str, address: usize) -> Option<&str> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let there = (number(start)?..number(end)?).contains(&address);
        there
            .then(|| rest.find('/').map(|at| &rest[at..]))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-2000 r-xp 00000000 fe:00 1                          /opt/program\n\
        2000-3000 rw-p 00000000 00:00 0 \n\
        3000-4000 r-xp 00000000 fe:00 2                          /x/libcuda.so.1\n\
        5000-6000 r-xp 00000000 fe:00 3                          /a b/libcublasLt.so.13\n";

    #[test]
    fn the_caller_is_the_first_file_that_is_not_ours() {
        let of = |frames: &[usize]| caller(MAPS, 0x3100, frames);
        assert_eq!(
            of(&[0x3200, 0x3300, 0x5100, 0x1100]),
            Some("/a b/libcublasLt.so.13")
        );
        assert_eq!(of(&[0x3200, 0x2100, 0x1100]), Some("/opt/program"));
        assert_eq!(of(&[0x3200, 0x9000]), None);
        assert_eq!(caller("nonsense\n", 0x3100, &[0x3200]), None);
    }

    #[test]
    fn a_library_is_named_and_a_program_is_told_the_fix() {
        assert!(message(Some("libcublasLt.so.13")).starts_with("`libcublasLt.so.13` carries"));
        assert!(message(None).ends_with("`-cudart shared`"));
    }
}
