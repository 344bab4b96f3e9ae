//! The messages of CRIU's RPC that are used here; field numbers as in its `rpc.proto`.

/// `criu_req_type`.
pub mod kind {
    /// Dump a process tree.
    pub const DUMP: i32 = 1;
    /// Restore one.
    pub const RESTORE: i32 = 2;
    /// A step of a dump has come, or may be done.
    pub const NOTIFY: i32 = 6;
    /// What version it is.
    pub const VERSION: i32 = 10;
}

/// Do not touch control groups.
pub const CGROUPS_IGNORE: i32 = 0;
/// Do not lock the network: all ends of a connection that is kept stand still.
pub const NETWORK_LOCK_SKIP: i32 = 3;

/// A descriptor that replaces one of the image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InheritFd {
    /// What it replaces: a path without its first slash, as bytes.
    #[prost(bytes = "vec", required, tag = "1")]
    pub key: Vec<u8>,
    /// Its number in CRIU.
    #[prost(int32, required, tag = "2")]
    pub fd: i32,
}

/// `criu_opts`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Options {
    /// Required by the format; -1 where `images_dir` is given.
    #[prost(int32, required, tag = "1")]
    pub images_dir_fd: i32,
    /// Root of the tree to dump.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    /// Let it run on after the dump.
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    /// Keep TCP connections.
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    /// Keep file locks.
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    /// 0 to 4.
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    /// A name inside `images_dir`.
    #[prost(string, optional, tag = "10")]
    pub log_file: Option<String>,
    /// Say which step has come, and wait for an answer.
    #[prost(bool, optional, tag = "12")]
    pub notify_scripts: Option<bool>,
    /// The restored root becomes a child of CRIU's parent.
    #[prost(bool, optional, tag = "26")]
    pub rst_sibling: Option<bool>,
    /// Replaced descriptors.
    #[prost(message, repeated, tag = "27")]
    pub inherit_fd: Vec<InheritFd>,
    /// One of the `CGROUPS_*`.
    #[prost(int32, optional, tag = "34")]
    pub manage_cgroups_mode: Option<i32>,
    /// Largest deleted file that is kept in the image, in bytes.
    #[prost(uint32, optional, tag = "35")]
    pub ghost_limit: Option<u32>,
    /// Seconds that freezing may take.
    #[prost(uint32, optional, tag = "45")]
    pub timeout: Option<u32>,
    /// Forget connections that a listening socket has not given out yet.
    #[prost(bool, optional, tag = "46")]
    pub tcp_skip_in_flight: Option<bool>,
    /// Bring pages in on demand.
    #[prost(bool, optional, tag = "48")]
    pub lazy_pages: Option<bool>,
    /// Restore TCP connections as closed.
    #[prost(bool, optional, tag = "52")]
    pub tcp_close: Option<bool>,
    /// One of the `NETWORK_LOCK_*`.
    #[prost(int32, optional, tag = "64")]
    pub network_lock: Option<i32>,
    /// Folder of the image, as bytes.
    #[prost(bytes = "vec", optional, tag = "68")]
    pub images_dir: Option<Vec<u8>>,
}

/// `criu_req`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// One of [`kind`].
    #[prost(int32, required, tag = "1")]
    pub kind: i32,
    /// Settings.
    #[prost(message, optional, tag = "2")]
    pub options: Option<Options>,
    /// Of an answer to [`kind::NOTIFY`]: whether to go on.
    #[prost(bool, optional, tag = "3")]
    pub go_on: Option<bool>,
}

/// `criu_restore_resp`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RestoreAnswer {
    /// The restored root.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
}

/// `criu_notify`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Notification {
    /// The step.
    #[prost(string, optional, tag = "1")]
    pub step: Option<String>,
}

/// `criu_version`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Version {
    /// First number.
    #[prost(int32, required, tag = "1")]
    pub major: i32,
    /// Second number.
    #[prost(int32, required, tag = "2")]
    pub minor: i32,
    /// Third number.
    #[prost(int32, optional, tag = "4")]
    pub sublevel: Option<i32>,
}

/// `criu_resp`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// As in the request.
    #[prost(int32, required, tag = "1")]
    pub kind: i32,
    /// Whether it worked.
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    /// Of a restore.
    #[prost(message, optional, tag = "4")]
    pub restore: Option<RestoreAnswer>,
    /// Of a notification.
    #[prost(message, optional, tag = "5")]
    pub notification: Option<Notification>,
    /// An errno, where there is one.
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    /// Words, where there are some.
    #[prost(string, optional, tag = "9")]
    pub message: Option<String>,
    /// Of a version request.
    #[prost(message, optional, tag = "10")]
    pub version: Option<Version>,
}
