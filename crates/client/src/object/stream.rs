//! Streams: the program's own, the legacy default stream and the per-thread ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use fermata_abi::op::{
    ContextId, EventId, Op, STREAM_LEGACY, STREAM_PER_THREAD, StreamId, StreamRef,
};
use fermata_abi::sys::driver::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN, CUgraphEdgeData, CUstream,
};
use parking_lot::Mutex;

use crate::handles::{self, Table};
use crate::link;
use crate::link::fault;
use crate::notice;
use crate::object::context::{Context, current_or_none, with_current};
use crate::object::graphs::{Graphs, any_capture};
use crate::object::recent;
use crate::result::Result;

/// Flags of the default stream of a green context, which is ordered with no other (CUDA driver API,
/// `cuGreenCtxStreamCreate`: streams of a green context are not blocking).
pub const DEFAULT_OF_GREEN: u32 = CU_STREAM_NON_BLOCKING;

/// All streams that the program made, the per-thread default streams, and the default streams of green contexts.
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
        self.create_as(handles::fresh(), context, flags, priority)
    }

    /// As [`Self::create`], with a handle that no other stream has had.
    pub fn create_as(
        &self,
        handle: StreamId,
        context: &Arc<Context>,
        flags: u32,
        priority: i32,
    ) -> Result<Arc<Stream>> {
        make(handle, context, flags, priority)?;
        let stream = Arc::new(Stream {
            handle,
            context: context.clone(),
            flags,
            priority,
            attributes: Mutex::default(),
            listed: Mutex::default(),
        });
        self.0.insert(handle, stream.clone());
        for gate in context.gates() {
            order(context, gate, stream.reference())?;
        }
        Ok(stream)
    }

    /// Calls `act` with the streams of a context that the program has; none of them ends meanwhile. Those of a primary
    /// context include the streams of its green contexts.
    pub fn with_those_of<T>(&self, context: &Context, act: impl FnOnce(Vec<StreamRef>) -> T) -> T {
        self.0.with_all(|all| {
            let is_own = |stream: &&Arc<Stream>| {
                let of = &stream.context;
                match context.green {
                    Some(_) => of.name() == context.name(),
                    None => of.handle == context.handle && of.check().is_ok(),
                }
            };
            let created = all.filter(is_own).map(|it| it.reference());
            let legacy = context.green.is_none().then(|| legacy(context));
            act(legacy.into_iter().chain(created).collect())
        })
    }

    /// The streams of a green context that has ended are of no more use. The program still has handles of those it made.
    pub fn end_green(&self, graphs: &Graphs, context: &Context) {
        recent::forget_all();
        for stream in self.with_those_of(context, |streams| streams) {
            if any_capture() {
                graphs.lock().captures.remove_stream(stream.stream);
            }
            // If the worker is lost, nothing can be done in the stream any more.
            let _ = graphs.stream_ends(stream);
        }
        if let Some(green) = &context.green {
            let _ = self.0.remove(green.default, CUDA_ERROR_INVALID_HANDLE);
        }
    }

    /// As `cuStreamGetId`, for a stream of `context`.
    pub fn id(&self, context: &Context, stream: CUstream) -> Result<u64> {
        let own = self.get(stream)?.map(|stream| stream.handle.raw());
        Ok(own.unwrap_or(context.handle.raw() | 1))
    }

    /// Ends a stream; its work goes on to its end.
    pub fn destroy(&self, graphs: &Graphs, stream: StreamId) -> Result {
        self.living(stream)?;
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
            StreamId::NULL | STREAM_LEGACY => match current_or_none() {
                Some(context) if context.green.is_some() => {
                    self.living(legacy(&context).stream).map(Some)
                }
                _ => Ok(None),
            },
            STREAM_PER_THREAD => with_current(|context| self.own(context)).map(Some),
            handle => self.living(handle).map(Some),
        }
    }

    /// The stream with this handle, unless it was in a green context that has ended.
    fn living(&self, handle: StreamId) -> Result<Arc<Stream>> {
        let stream = self.0.get(handle, CUDA_ERROR_INVALID_HANDLE)?;
        if stream.context.green.is_some() {
            stream.context.check()?;
        }
        Ok(stream)
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
            STREAM_PER_THREAD if context.green.is_some() => Err(CUDA_ERROR_INVALID_HANDLE),
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
            Ok(self.living(handle)?.reference())
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
        // As the driver: see `cuStreamGetCtx_v2`.
        if context.green.is_some() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
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

/// The legacy default stream of a context; of a green context, its default stream.
#[inline]
pub fn legacy(context: &Context) -> StreamRef {
    StreamRef {
        context: context.handle,
        stream: context
            .green
            .as_ref()
            .map_or(STREAM_LEGACY, |green| green.default),
    }
}

/// Whether a program that gives this means a default stream, which is not the thread's own.
pub fn is_legacy(stream: CUstream) -> bool {
    matches!(handles::of(stream), StreamId::NULL | STREAM_LEGACY)
}

/// Has the worker make a stream.
fn make(stream: StreamId, context: &Context, flags: u32, priority: i32) -> Result {
    let Some(green) = &context.green else {
        let context = context.handle;
        return link::post(&Op::StreamCreate {
            stream,
            context,
            flags,
            priority,
        });
    };
    if flags & CU_STREAM_NON_BLOCKING == 0 {
        notice::write(
            "the program makes a blocking stream while a green context is current, which is not supported: how such a stream \
             is ordered with the default stream of the green context is not documented; streams with \
             CU_STREAM_NON_BLOCKING are supported",
        );
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    link::post(&Op::GreenStream {
        stream,
        green: green.name,
        flags,
        priority,
    })
}

/// Makes later work of stream `to` wait for all work that `from` has now; both are in `context` or its primary context.
fn order(context: &Context, from: StreamRef, to: StreamRef) -> Result {
    let event: EventId = handles::fresh();
    link::post(&Op::EventCreate {
        event,
        context: context.handle,
        flags: CU_EVENT_DISABLE_TIMING,
    })?;
    let (stream, flags) = (from, 0);
    link::post(&Op::EventRecord {
        event,
        stream,
        flags,
    })?;
    let stream = to;
    link::post(&Op::StreamWait {
        stream,
        event,
        flags,
    })?;
    link::post(&Op::EventDestroy { event })
}

/// A stream of this library's own in a context of the program.
#[derive(Debug)]
pub struct Aside(StreamRef);

impl Aside {
    /// Makes one.
    pub fn create(context: &Context) -> Result<Self> {
        let stream = handles::fresh();
        make(stream, context, CU_STREAM_NON_BLOCKING, 0)?;
        let context = context.handle;
        Ok(Self(StreamRef { context, stream }))
    }

    /// Its name in operations.
    pub fn reference(&self) -> StreamRef {
        self.0
    }

    /// Makes it wait for all work that another stream of the context has now.
    pub fn wait_for(&self, context: &Context, stream: StreamRef) -> Result {
        order(context, stream, self.0)
    }

    /// Ends it; its work goes on to its end.
    pub fn destroy(self) -> Result {
        let stream = self.0.stream;
        link::post(&Op::StreamDestroy { stream })
    }
}
