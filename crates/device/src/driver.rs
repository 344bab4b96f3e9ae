//! Opening a driver library.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::functions::Functions;
use crate::{DriverError, LoadError};

/// A driver library, opened by path and initialised. It stays loaded for the life of the process,
/// for its threads do too.
pub struct Driver {
    pub(crate) f: Functions,
    version: i32,
    count: u32,
    path: PathBuf,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish()
    }
}

impl Driver {
    /// Opens the library at `path`, finds its functions and initialises it.
    ///
    /// # Errors
    /// [`LoadError`] names what is missing or what the driver said.
    pub fn load(path: &Path) -> std::result::Result<Self, LoadError> {
        // SAFETY: the caller names a CUDA driver library; its initialisers are meant to run on load.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|source| LoadError::Open {
            path: path.to_owned(),
            source,
        })?;
        let f = Functions::load(&library, path)?;
        std::mem::forget(library);
        let init = |source| LoadError::Init {
            path: path.to_owned(),
            source,
        };
        f.cuInit(0).map_err(init)?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: both pointers refer to live locals.
        unsafe {
            f.cuDriverGetVersion(&mut version)
                .and_then(|()| f.cuDeviceGetCount(&mut count))
        }
        .map_err(init)?;
        let count = u32::try_from(count).unwrap_or(0);
        Ok(Self {
            f,
            version,
            count,
            path: path.to_owned(),
        })
    }

    /// `cuDriverGetVersion`.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Devices the driver shows.
    pub fn device_count(&self) -> u32 {
        self.count
    }

    /// Where the library lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Result of a driver call.
pub(crate) type Result<T> = std::result::Result<T, DriverError>;
