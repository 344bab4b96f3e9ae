//! Exported functions that share events between processes of a session ([`crate::object::shared`]).
//!
//! A handle names the event and does not keep it alive. The workers hold the driver's own handles, which change with a
//! restore.

use core::ffi::c_char;

use fermata_abi::op::SharedEvent;
use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::context::current;
use crate::object::session::session;
use crate::object::shared;

driver_api! {
    fn cuIpcGetEventHandle(handle: Out<sys::CUipcEventHandle>, event: sys::CUevent) {
        let event = session()?.events.get(event)?;
        if handle.is_null() || !event.is_between() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let reserved = shared::share_event(event.handle)?.map(|byte| byte as c_char);
        handle.set(sys::CUipcEventHandle { reserved })
    }

    fn cuIpcOpenEventHandle(event: Out<sys::CUevent>, handle: sys::CUipcEventHandle) {
        let session = session()?;
        if event.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let given = SharedEvent::decode(&handle.reserved.map(|byte| byte as u8));
        let given = given.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if shared::is_own(&given.sharer) {
            return Err(sys::CUDA_ERROR_INVALID_CONTEXT);
        }
        event.set(to_pointer(session.events.open(&current()?, &given)?.handle))
    }
}
