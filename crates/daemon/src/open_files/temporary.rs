//! Files that live no longer than the program that has made them. CRIU dumps the names of a program's files, not what they
//! hold; of these an image holds both: a list, and a copy of each.
//!
//! | file | at a restore |
//! | --- | --- |
//! | memory that processes share by name: mapped by them and written, in `/dev/shm` or a folder for temporary files | comes back as it was at the dump |
//! | open for writing, in such a folder | as it is now; if it is gone, as it was at the dump |
//! | FIFO with a name | as it is now; if it is gone, made again |
//!
//! Files on a disk are copied up to a length; larger ones are the user's. How memory that is shared comes back:
//!
//! | there is | the program gets |
//! | --- | --- |
//! | no file of this name | the file, with its name |
//! | one that no process uses, left by a program that was killed | the file in place of that one |
//! | one that a process uses, such as the program itself, which runs on, or that another restore has made | a file of its own without a name, made by pid 1 |
//!
//! Files without a name are CRIU's: it dumps what they hold.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    fchown,
};
use std::path::{Path, PathBuf};

use fermata_hostmem::{Entry, Maps, open_flags};
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, SeekFrom, mknodat, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::owner::Owner;
use crate::proc;

/// The list, in the folder of CRIU's files.
const LIST: &str = "temporary.json";
/// What statfs(2) says of a file system in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Folders for temporary files, beside that of `TMPDIR`.
const FOLDERS: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
/// Files on a disk up to this length are copied.
const LONGEST: u64 = 16 << 20;
/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// Held from the check that a file is not in use until another has its name: several restores may place the same file.
static EXCHANGES: Mutex<()> = Mutex::new(());

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Purpose {
    /// Memory that is shared.
    Memory,
    /// Data.
    Data,
    /// A FIFO.
    Fifo,
}

/// A file as it was at the dump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Temporary {
    /// Its path.
    #[serde(with = "fermata_control::text::path")]
    pub path: PathBuf,
    purpose: Purpose,
    mode: u32,
    user: u32,
    group: u32,
    /// The file with what it holds, in the folder of CRIU's files; none for a FIFO.
    copy: Option<String>,
}

/// Collects the files of a dump.
struct Collection<'a> {
    host: &'a Path,
    except: &'a Path,
    folders: Vec<PathBuf>,
    seen: BTreeSet<(u64, u64)>,
    files: Vec<Temporary>,
}

/// Copies the files of these processes to the dump in `host`, `except` one. The processes stand still.
///
/// # Errors
/// A file cannot be read, or the copy not be written.
pub fn copy(host: &Path, processes: &[u32], except: &Path) -> io::Result<()> {
    let mut folders: Vec<PathBuf> = FOLDERS.map(PathBuf::from).into();
    folders.extend(processes.iter().filter_map(|pid| own_folder(*pid)));
    let mut all = Collection {
        host,
        except,
        folders,
        seen: BTreeSet::new(),
        files: Vec::new(),
    };
    for pid in processes {
        // It may have ended.
        let maps = Maps::of(*pid).unwrap_or_default();
        for mapping in maps.entries().filter(is_shared) {
            // Its path may lie where the daemon has another file, or none.
            let file = format!("/proc/{pid}/map_files/{}", mapping.in_map_files());
            all.add(&file.into(), Purpose::Memory)?;
        }
    }
    for pid in processes {
        for (number, _) in proc::descriptors(*pid) {
            let link = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
            let Ok(meta) = fs::metadata(&link) else {
                continue;
            };
            let of_it = format!("/proc/{pid}/fdinfo/{number}");
            if meta.file_type().is_fifo() {
                all.add(&link, Purpose::Fifo)?;
            } else if meta.is_file() && writes(&fs::read_to_string(of_it).unwrap_or_default()) {
                all.add(&link, Purpose::Data)?;
            }
        }
    }
    match all.files.is_empty() {
        true => Ok(()),
        false => fs::write(host.join(LIST), serde_json::to_vec(&all.files)?),
    }
}

impl Collection<'_> {
    /// Adds the file behind `link`, if it is one to be copied.
    fn add(&mut self, link: &PathBuf, purpose: Purpose) -> io::Result<()> {
        let (Ok(meta), Ok(path)) = (fs::metadata(link), fs::read_link(link)) else {
            // The process was killed.
            return Ok(());
        };
        let named = meta.nlink() > 0 && path.is_absolute() && path != self.except;
        if !named || !self.seen.insert((meta.dev(), meta.ino())) {
            return Ok(());
        }
        let copy = match purpose {
            Purpose::Fifo => None,
            _ => match self.copied(link, &meta, &path, purpose)? {
                None => return Ok(()),
                copied => copied,
            },
        };
        self.files.push(Temporary {
            path,
            purpose,
            mode: meta.mode() & 0o7777,
            user: meta.uid(),
            group: meta.gid(),
            copy,
        });
        Ok(())
    }

    /// The name of the file's copy; none if it is not copied.
    fn copied(
        &self,
        link: &Path,
        meta: &Metadata,
        path: &Path,
        purpose: Purpose,
    ) -> io::Result<Option<String>> {
        if !meta.is_file() {
            return Ok(None);
        }
        let file = match File::open(link) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let in_memory = rustix::fs::fstatfs(&file)?.f_type == TMPFS_MAGIC;
        let whole = in_memory && purpose == Purpose::Memory;
        let below = |folder: &PathBuf| path.starts_with(folder);
        if !whole && (meta.len() > LONGEST || !self.folders.iter().any(below)) {
            return Ok(None);
        }
        let name = format!("temporary-{}", self.files.len());
        let to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.host.join(&name))?;
        copy_content(&file, &to)?;
        Ok(Some(name))
    }
}

/// The folder for temporary files that a process was told.
fn own_folder(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|it| it.strip_prefix(b"TMPDIR="))?;
    let folder = PathBuf::from(OsStr::from_bytes(value));
    (folder.is_absolute() && folder.parent().is_some()).then_some(folder)
}

/// Whether a descriptor is open for writing, from its `fdinfo`.
fn writes(info: &str) -> bool {
    open_flags(info).is_some_and(|it| it & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Whether a mapping is shared, can be written, and is of a file.
fn is_shared(mapping: &Entry<'_>) -> bool {
    let [read, write, _, shared] = mapping.access;
    [read, write, shared] == *b"rws" && mapping.inode != 0
}

/// Copies what is not a hole.
fn copy_content(from: &File, to: &File) -> io::Result<()> {
    to.set_len(from.metadata()?.len())?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let length = piece.len().min((end - at) as usize);
            from.read_exact_at(&mut piece[..length], at)?;
            to.write_all_at(&piece[..length], at)?;
            at += length as u64;
        }
    }
}

/// The files of the dump in `host`.
///
/// # Errors
/// The list cannot be read.
pub fn list(host: &Path) -> io::Result<Vec<Temporary>> {
    match fs::read(host.join(LIST)) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        // Images of programs that have none, and of earlier releases.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

impl Temporary {
    /// Whether it comes back as it was, whatever there is in its place.
    pub fn is_memory(&self) -> bool {
        self.purpose == Purpose::Memory
    }

    /// A file with this content and no name, in the folder where it lies; `host` has the copies.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn nameless(&self, host: &Path) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(self.folder())?;
        self.fill(&file, host)?;
        Ok(file.into())
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn fill(&self, file: &File, host: &Path) -> io::Result<()> {
        if let Some(copy) = &self.copy {
            copy_content(&File::open(host.join(copy))?, file)?;
        }
        fchown(file, Some(self.user), Some(self.group))?;
        file.set_permissions(Permissions::from_mode(self.mode))
    }

    /// An empty file beside it, and its path.
    fn beside(&self) -> io::Result<(PathBuf, File)> {
        let mut number = 0;
        loop {
            let name = format!(".fermata-{}-{number}", std::process::id());
            let path = self.folder().join(name);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                made => return Ok((path, made?)),
            }
        }
    }

    /// Makes it, under its name if that is free or, for memory, not in use. Memory stays open: so it is in use, although
    /// CRIU has not opened it yet.
    fn place(&self, host: &Path) -> io::Result<(Place, Option<File>)> {
        match (self.purpose, self.path.symlink_metadata()) {
            (Purpose::Memory, _) => {}
            (_, Ok(_)) => return Ok((Place::Theirs, None)),
            (Purpose::Fifo, _) => return Ok((self.make_fifo()?, None)),
            (Purpose::Data, _) => {}
        }
        let (new, file) = self.beside()?;
        let placed = self.fill(&file, host).and_then(|()| self.put(&new));
        if !matches!(placed, Ok(Place::New | Place::Instead(_))) {
            fs::remove_file(&new)?;
        }
        let open = Some(file).filter(|_| self.is_memory());
        placed.map(|place| (place, open))
    }

    fn make_fifo(&self) -> io::Result<Place> {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &self.path, FileType::Fifo, mode, 0)?;
        let owner = Owner {
            user: self.user,
            group: self.group,
            mode: self.mode,
        };
        owner.take(&self.path, fs::FileType::is_fifo)?;
        Ok(Place::New)
    }

    /// Gives the file at `new` its name.
    fn put(&self, new: &Path) -> io::Result<Place> {
        match renameat_with(CWD, new, CWD, &self.path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(Place::New),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let _others = EXCHANGES.lock();
        let there = self.path.symlink_metadata()?;
        if !self.is_memory() || !there.is_file() || is_used(&there) {
            return Ok(Place::Theirs);
        }
        renameat_with(CWD, new, CWD, &self.path, RenameFlags::EXCHANGE)?;
        Ok(Place::Instead(new.to_owned()))
    }
}

/// Whether any process has a file open, or mapped. The daemon itself has those open that it has placed for a restore, and is looked
/// at first: other copies of the program wait meanwhile.
fn is_used(file: &fs::Metadata) -> bool {
    let is_it = |path: PathBuf| {
        fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (file.dev(), file.ino()))
    };
    let own = std::process::id();
    let others = proc::all().into_iter().filter(|pid| *pid != own);
    std::iter::once(own).chain(others).any(|pid| {
        let of_it = |name: &str| {
            let entries = fs::read_dir(format!("/proc/{pid}/{name}"));
            let mut paths = entries.into_iter().flatten().flatten().map(|it| it.path());
            paths.any(is_it)
        };
        of_it("map_files") || of_it("fd")
    })
}

/// Where a file was made.
#[derive(Debug)]
enum Place {
    /// Under its name.
    New,
    /// Under its name; what was there is here.
    Instead(PathBuf),
    /// Nowhere: what is there stays.
    Theirs,
}

/// Files that have been made for a restore; they go again with this.
#[derive(Debug, Default)]
pub struct Placed {
    /// Their paths; shared memory is open until the program has it.
    files: Vec<(PathBuf, Place, Option<File>)>,
    nameless: Vec<Temporary>,
}

impl Placed {
    /// Makes the files of the dump in `host` that are missing, and memory that is shared.
    ///
    /// # Errors
    /// The file that cannot be made, and why; nothing is left then.
    pub fn again(host: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut placed = Self::default();
        for file in list(host).map_err(|e| (host.join(LIST), e))? {
            match file.place(host).map_err(|e| (file.path.clone(), e))? {
                (Place::Theirs, _) if file.is_memory() => placed.nameless.push(file),
                (Place::Theirs, _) => {}
                (place, open) => placed.files.push((file.path, place, open)),
            }
        }
        Ok(placed)
    }

    /// Memory whose name is in use: the program gets it without a name.
    pub fn nameless(&self) -> &[Temporary] {
        &self.nameless
    }

    /// They belong to the program from now on.
    pub fn keep(mut self) {
        for (_, place, _) in self.files.drain(..) {
            if let Place::Instead(old) = place {
                // Nothing uses it.
                let _ = fs::remove_file(old);
            }
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        for (path, place, _) in &self.files {
            let gone = match place {
                Place::Instead(old) => fs::rename(old, path),
                _ => fs::remove_file(path),
            };
            // The program may have removed it.
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::fd::AsRawFd as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::looks::scene::soon;

    const MEMORY: &str = "/dev/shm";

    /// A file in memory with a hole and these last bytes, and the folder of a dump that has a copy of it.
    fn dumped(purpose: Purpose) -> (tempfile::TempDir, tempfile::TempDir, PathBuf) {
        let memory = tempfile::tempdir_in(MEMORY).expect("a folder in memory");
        let path = memory.path().join("queue");
        let file = File::create_new(&path).expect("made");
        file.write_all_at(b"then", 3 << 20).expect("written");
        file.set_permissions(Permissions::from_mode(0o640))
            .expect("set");
        let host = tempfile::tempdir().expect("a folder");
        let of_it = Temporary {
            path: path.clone(),
            purpose,
            mode: 0o640,
            user: rustix::process::getuid().as_raw(),
            group: rustix::process::getgid().as_raw(),
            copy: Some("temporary-0".into()),
        };
        let copy = File::create_new(host.path().join("temporary-0")).expect("made");
        copy_content(&file, &copy).expect("copied");
        let text = serde_json::to_vec(&[of_it]).expect("text");
        fs::write(host.path().join(LIST), text).expect("written");
        (memory, host, path)
    }

    fn last(path: &Path) -> Vec<u8> {
        let bytes = fs::read(path).expect("read");
        assert_eq!(bytes.len(), (3 << 20) + 4);
        assert!(bytes[..3 << 20].iter().all(|it| *it == 0));
        bytes[3 << 20..].to_vec()
    }

    fn write(path: &Path, text: &[u8]) {
        let file = OpenOptions::new().write(true).open(path).expect("opened");
        file.write_all_at(text, 3 << 20).expect("written");
    }

    /// Waits until no process uses the file.
    fn wait_unused(path: &Path) {
        let there = path.symlink_metadata().expect("there");
        assert!(!soon(|| is_used(&there), |used| !used), "it is used");
    }

    #[test]
    fn a_file_that_is_gone_comes_back_and_goes_with_a_failed_restore() {
        let (_memory, host, path) = dumped(Purpose::Memory);
        fs::remove_file(&path).expect("removed");
        let placed = Placed::again(host.path()).expect("made");
        assert_eq!(last(&path), b"then");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o640);
        drop(placed);
        assert!(!path.exists());
        Placed::again(host.path()).expect("made").keep();
        assert_eq!(last(&path), b"then");
    }

    #[test]
    fn a_file_that_was_left_is_replaced_and_comes_back_after_a_failed_restore() {
        let (memory, host, path) = dumped(Purpose::Memory);
        write(&path, b"left");
        wait_unused(&path);
        let placed = Placed::again(host.path()).expect("made");
        assert!(placed.nameless().is_empty());
        assert_eq!(last(&path), b"then");
        drop(placed);
        assert_eq!(last(&path), b"left");
        wait_unused(&path);
        Placed::again(host.path()).expect("made").keep();
        assert_eq!(last(&path), b"then");
        let all = fs::read_dir(memory.path()).expect("listed");
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn a_file_that_a_process_uses_stays_and_the_program_gets_another() {
        let (memory, host, path) = dumped(Purpose::Memory);
        write(&path, b"used");
        let open = File::open(&path).expect("opened");
        let placed = Placed::again(host.path()).expect("made");
        let [other] = placed.nameless() else {
            panic!("{placed:?}")
        };
        let own = other.nameless(host.path()).expect("made");
        let link = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
        assert_eq!(last(&link), b"then");
        assert_eq!(last(&path), b"used");
        placed.keep();
        assert_eq!(last(&path), b"used");
        let all = fs::read_dir(memory.path()).expect("listed");
        assert_eq!(all.count(), 1);
        drop(open);
    }

    #[test]
    fn restores_at_the_same_time_have_shared_memory_of_their_own() {
        for left in [true, false] {
            let (memory, host, path) = dumped(Purpose::Memory);
            match left {
                true => wait_unused(&path),
                false => fs::remove_file(&path).expect("removed"),
            }
            // CRIU has opened neither yet.
            let one = Placed::again(host.path()).expect("made");
            let placed = fs::metadata(&path).expect("there").ino();
            let other = Placed::again(host.path()).expect("made");
            assert_eq!((one.nameless().len(), other.nameless().len()), (0, 1));
            assert_eq!(fs::metadata(&path).expect("there").ino(), placed);
            other.keep();
            one.keep();
            assert_eq!(fs::metadata(&path).expect("there").ino(), placed);
            let all = fs::read_dir(memory.path()).expect("listed");
            assert_eq!(all.count(), 1);
        }
    }

    /// Maps a file at an address that `/proc/PID/maps` shows with a zero in front.
    const LOW: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
fixed, shared, both = 0x100000, 1, 3
print(libc.mmap(0x1000000, 4096, both, shared | fixed, file, 0) == 0x1000000, flush=True)
os.close(file)
sys.stdin.read()
";

    #[test]
    fn shared_memory_is_copied_wherever_it_is_mapped() {
        let memory = tempfile::tempdir_in(MEMORY).expect("a folder in memory");
        let path = memory.path().join("low");
        fs::write(&path, [7; 4096]).expect("written");
        let mut child = Command::new("python3")
            .args(["-c", LOW])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut said).expect("read");
        assert_eq!(said, "True\n");
        let host = tempfile::tempdir().expect("a folder");
        let copied = copy(host.path(), &[child.id()], Path::new(""));
        drop(child.stdin.take());
        child.wait().expect("ended");
        copied.expect("copied");
        let list = fs::read(host.path().join(LIST)).expect("there is one");
        let list: Vec<Temporary> = serde_json::from_slice(&list).expect("a list");
        let found = list.iter().find(|it| it.path == path).expect("it is there");
        assert_eq!(found.purpose, Purpose::Memory);
        let copy = found.copy.as_ref().expect("a copy");
        let bytes = fs::read(host.path().join(copy)).expect("read");
        assert_eq!(bytes, [7; 4096]);
    }

    #[test]
    fn only_what_is_shared_or_open_for_writing_counts() {
        let is = |access: &str, inode: u64| {
            let line = format!("7f00-7f10 {access} 00000000 00:1a {inode}   /dev/shm/a b");
            let maps = Maps::from(&*line);
            maps.entries().any(|it| is_shared(&it))
        };
        assert!(is("rw-s", 42) && is("rwxs", 42));
        assert!(!is("r--s", 42) && !is("rw-p", 42) && !is("rw-s", 0));
        assert!(writes("pos:\t0\nflags:\t0100002\n") && writes("flags:\t0102001\n"));
        assert!(!writes("flags:\t0100000\n") && !writes(""));
    }

    #[test]
    fn data_and_fifos_are_made_again_only_where_they_are_gone() {
        let (_memory, host, path) = dumped(Purpose::Data);
        write(&path, b"kept");
        let placed = Placed::again(host.path()).expect("made");
        assert!(placed.nameless().is_empty());
        drop(placed);
        assert_eq!(last(&path), b"kept");
        fs::remove_file(&path).expect("removed");
        drop(Placed::again(host.path()).expect("made"));
        assert!(!path.exists());
        Placed::again(host.path()).expect("made").keep();
        assert_eq!(last(&path), b"then");
        let mut fifo = list(host.path()).expect("listed").remove(0);
        fs::remove_file(&path).expect("removed");
        (fifo.purpose, fifo.copy) = (Purpose::Fifo, None);
        let text = serde_json::to_vec(&[fifo]).expect("text");
        fs::write(host.path().join(LIST), text).expect("written");
        for _ in 0..2 {
            Placed::again(host.path()).expect("made").keep();
            let made = fs::symlink_metadata(&path).expect("there");
            assert!(made.file_type().is_fifo() && made.mode() & 0o777 == 0o640);
        }
    }

    /// Opens files of its folder until its input ends.
    const OPENS: &str = "exec 3<>data 4<>log 5<>long 6<read; echo open; read line";

    #[test]
    fn what_a_program_has_open_in_a_folder_for_temporary_files_is_copied() {
        let (folder, host) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let path = |name: &str| folder.path().join(name);
        let made = |name: &str| File::create_new(path(name)).expect("made");
        let open = [made("data"), made("log"), made("long")];
        open[0].write_all_at(b"data", 0).expect("written");
        open[2].set_len(LONGEST + 1).expect("set");
        drop(open);
        fs::write(path("read"), "").expect("written");
        let mut child = Command::new("sh")
            .args(["-c", OPENS])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = String::new();
        let out = child.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut said).expect("read");
        assert_eq!(said, "open\n");
        let copied = copy(host.path(), &[child.id()], &path("log"));
        drop(child.stdin.take());
        child.wait().expect("ended");
        copied.expect("copied");
        // It has inherited what this process was given.
        let mut all = list(host.path()).expect("listed");
        all.retain(|it| it.path.starts_with(folder.path()));
        let [data] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&data.path, data.is_memory()), (&path("data"), false));
        let copy = host.path().join(data.copy.as_ref().expect("a copy"));
        assert_eq!(fs::read(copy).expect("read"), b"data");
    }

    #[test]
    fn an_image_without_the_list_has_none() {
        let host = tempfile::tempdir().expect("a folder");
        assert!(list(host.path()).expect("none").is_empty());
        fs::write(host.path().join(LIST), "[").expect("written");
        assert!(Placed::again(host.path()).is_err());
    }
}
