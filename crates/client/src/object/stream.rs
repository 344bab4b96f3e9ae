//! Streams: the program's own, the legacy default stream and the per-thread ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use fermata_abi::op::{ContextId, Op, STREAM_LEGACY, STREAM_PER_THREAD, StreamId, StreamRef};
use fermata_abi::sys::driver::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN, CUgraphEdgeData, CUstream,
};
use parking_lot::Mutex;

use crate::handles::{self, Table};
use crate::link;
use crate::link::fault;
use crate::object::context::{Context, with_current};
use crate::object::graphs::{Graphs, any_capture};
use crate::object::recent;
use crate::result::Result;

/// All streams that the program made, and the per-thread default streams.
#[derive(Debug, Default)]
pub struct Streams(Table<StreamId, Stream>);

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its handle.
    pub handle: StreamId,
    /// The context it was made in.
    pub context: Arc<Context>,
    /// `CUstream_flags`.
    pub flags: u32,
    /// From -5, the most urgent, to 0.
    pub priority: i32,
    /// Attributes the program has set, which are only remembered.
    pub attributes: Mutex<HashMap<u32, [u8; 64]>>,
    /// The dependencies that were last returned for its capture.
    pub listed: Mutex<Dependencies>,
}

/// What a capture's next node depends on, kept for as long as the program may read it: until the next such call for the
/// stream, or the stream's end.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// Handles of nodes.
    pub nodes: Vec<usize>,
    /// The edge from each, as bytes of a `CUgraphEdgeData`; no edge has ports.
    pub edges: Vec<[u8; size_of::<CUgraphEdgeData>()]>,
}

/// The thread's default streams, one for each context in which it has used one; they end with the thread.
type Own = Vec<(ContextId, Arc<Stream>)>;

thread_local! {
    /// Without a destructor, so that destructors of the program can use it; see `ending`.
    static OWN: ManuallyDrop<RefCell<Own>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Calls `act` with the thread's list. Fails in a signal handler that has interrupted a call which uses the list.
fn with_own<T>(act: impl FnOnce(&mut Own) -> T) -> Result<T> {
    OWN.with(|own| {
        let mut own = own.try_borrow_mut().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        Ok(act(&mut own))
    })
}

/// The calling thread's default streams, which end with it.
pub fn take_own() -> Vec<Arc<Stream>> {
    let own = with_own(std::mem::take).unwrap_or_default();
    own.into_iter().map(|(_, stream)| stream).collect()
}

impl Streams {
    /// A new stream.
    pub fn create(&self, context: &Arc<Context>, flags: u32, priority: i32) -> Result<Arc<Stream>> {
        let handle = handles::fresh();
        link::post(&Op::StreamCreate {
            stream: handle,
            context: context.handle,
            flags,
            priority,
        })?;
        let stream = Arc::new(Stream {
            handle,
            context: context.clone(),
            flags,
            priority,
            attributes: Mutex::default(),
            listed: Mutex::default(),
        });
        self.0.insert(handle, stream.clone());
        Ok(stream)
    }

    /// As `cuStreamGetId`, for a stream of `context`.
    pub fn id(&self, context: &Context, stream: CUstream) -> Result<u64> {
        let own = self.get(stream)?.map(|stream| stream.handle.raw());
        Ok(own.unwrap_or(context.handle.raw() | 1))
    }

    /// Ends a stream; its work goes on to its end.
    pub fn destroy(&self, graphs: &Graphs, stream: StreamId) -> Result {
        let stream = self.0.remove(stream, CUDA_ERROR_INVALID_HANDLE)?;
        recent::forget_all();
        if any_capture() {
            graphs.lock().captures.remove_stream(stream.handle);
        }
        graphs.stream_ends(stream.reference())?;
        link::post(&Op::StreamDestroy {
            stream: stream.handle,
        })?;
        fault::check(stream.context.handle)
    }

    /// The stream behind a handle; `None` for the legacy default stream.
    pub fn get(&self, stream: CUstream) -> Result<Option<Arc<Stream>>> {
        match handles::of(stream) {
            StreamId::NULL | STREAM_LEGACY => Ok(None),
            STREAM_PER_THREAD => with_current(|context| self.own(context)).map(Some),
            handle => self.0.get(handle, CUDA_ERROR_INVALID_HANDLE).map(Some),
        }
    }

    /// The context a stream belongs to.
    pub fn context_of(&self, stream: CUstream) -> Result<Arc<Context>> {
        match self.get(stream)? {
            Some(stream) => Ok(stream.context.clone()),
            None => crate::object::context::current(),
        }
    }

    /// The stream as operations name it.
    #[inline]
    pub fn resolve(&self, stream: CUstream) -> Result<StreamRef> {
        match handles::of(stream) {
            StreamId::NULL | STREAM_LEGACY | STREAM_PER_THREAD => {
                with_current(|context| self.resolve_in(context, stream))
            }
            handle => self.known(handle),
        }
    }

    /// As [`Streams::resolve`], for a caller that has already looked up the current context.
    #[inline(always)]
    pub fn resolve_in(&self, context: &Arc<Context>, stream: CUstream) -> Result<StreamRef> {
        match handles::of(stream) {
            StreamId::NULL | STREAM_LEGACY => Ok(legacy(context)),
            // A thread's own stream is another one in each context.
            handle @ STREAM_PER_THREAD => recent::stream(handle, context.handle, || {
                Ok(self.own(context)?.reference())
            }),
            handle => self.known(handle),
        }
    }

    #[inline]
    fn known(&self, handle: StreamId) -> Result<StreamRef> {
        recent::stream(handle, ContextId::NULL, || {
            Ok(self.0.get(handle, CUDA_ERROR_INVALID_HANDLE)?.reference())
        })
    }

    /// Forgets the streams of a context that has ended.
    pub fn forget(&self, graphs: &Graphs, context: ContextId) {
        let gone = self.0.remove_if(|stream| stream.context.handle == context);
        recent::forget_all();
        if any_capture() {
            let mut graphs = graphs.lock();
            for stream in gone {
                graphs.captures.remove_stream(stream.handle);
            }
        }
        graphs.context_ends(context);
        let _ = with_own(|own| own.retain(|(of, _)| *of != context));
    }

    /// The thread's own default stream in a context.
    fn own(&self, context: &Arc<Context>) -> Result<Arc<Stream>> {
        let known = with_own(|own| {
            let mut found = own.iter().filter(|(of, _)| *of == context.handle);
            found.next().map(|(_, stream)| stream.clone())
        })?;
        // The context may have ended and begun again, in another thread.
        if let Some(stream) = known
            && self.0.get(stream.handle, CUDA_ERROR_INVALID_HANDLE).is_ok()
        {
            return Ok(stream);
        }
        let stream = self.create(context, 0, 0)?;
        with_own(|own| {
            own.retain(|(of, _)| *of != context.handle);
            own.push((context.handle, stream.clone()));
        })?;
        Ok(stream)
    }
}

impl Stream {
    /// Its name in operations.
    pub fn reference(&self) -> StreamRef {
        StreamRef {
            context: self.context.handle,
            stream: self.handle,
        }
    }
}

/// The legacy default stream of a context.
#[inline]
pub fn legacy(context: &Context) -> StreamRef {
    StreamRef {
        context: context.handle,
        stream: STREAM_LEGACY,
    }
}
