//! Special registers.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, Value, types};

use super::Translator;
use crate::exec::runtime::context::DeviceThread;
use crate::exec::runtime::grid::RESERVED_SHARED;
use crate::exec::runtime::helpers;

impl Translator<'_, '_> {
    /// The value of a special register, if `name` is one.
    pub(super) fn special(&mut self, name: &str, field: Option<&str>) -> Option<Value> {
        if name == "WARP_SZ" {
            return Some(self.b.ins().iconst(types::I32, 32));
        }
        let name = name.strip_prefix('%')?;
        if let Some(field) = field {
            let index = match field {
                "x" => 0,
                "y" => 1,
                "z" => 2,
                _ => return None,
            };
            let offset = match name {
                "tid" => offset_of!(DeviceThread, tid),
                "ntid" => offset_of!(DeviceThread, ntid),
                "ctaid" | "clusterid" => offset_of!(DeviceThread, ctaid),
                "nctaid" | "nclusterid" => offset_of!(DeviceThread, nctaid),
                "cluster_ctaid" => return Some(self.b.ins().iconst(types::I32, 0)),
                "cluster_nctaid" => return Some(self.b.ins().iconst(types::I32, 1)),
                _ => return None,
            };
            return Some(self.constant_field(types::I32, offset + 4 * index));
        }
        let constant = |t: &mut Self, value: i64| Some(t.b.ins().iconst(types::I32, value));
        match name {
            "laneid" => Some(self.lane()),
            "warpid" => Some(self.constant_field(types::I32, offset_of!(DeviceThread, warp))),
            "nwarpid" => Some(self.constant_field(types::I32, offset_of!(DeviceThread, warps))),
            "smid" => Some(self.constant_field(types::I32, offset_of!(DeviceThread, sm))),
            "nsmid" => Some(self.constant_field(types::I32, offset_of!(DeviceThread, sms))),
            "gridid" => Some(self.constant_field(types::I64, offset_of!(DeviceThread, grid_id))),
            "dynamic_smem_size" => {
                Some(self.constant_field(types::I32, offset_of!(DeviceThread, dynamic_bytes)))
            }
            "total_smem_size" | "aggr_smem_size" => {
                Some(self.constant_field(types::I32, offset_of!(DeviceThread, shared_size)))
            }
            "lanemask_eq" | "lanemask_le" | "lanemask_lt" | "lanemask_ge" | "lanemask_gt" => {
                Some(self.lane_mask(name))
            }
            "clock" => {
                let now = self.clock(0);
                Some(self.b.ins().ireduce(types::I32, now))
            }
            "clock_hi" => {
                let now = self.clock(0);
                let now = self.b.ins().ushr_imm_u(now, 32);
                Some(self.b.ins().ireduce(types::I32, now))
            }
            "clock64" => Some(self.clock(0)),
            "globaltimer" => Some(self.clock(1)),
            "globaltimer_lo" => {
                let now = self.clock(1);
                Some(self.b.ins().ireduce(types::I32, now))
            }
            "globaltimer_hi" => {
                let now = self.clock(1);
                let now = self.b.ins().ushr_imm_u(now, 32);
                Some(self.b.ins().ireduce(types::I32, now))
            }
            "is_explicit_cluster" => Some(self.b.ins().iconst(types::I8, 0)),
            "cluster_ctarank" => constant(self, 0),
            "cluster_nctarank" => constant(self, 1),
            "reserved_smem_offset_begin" | "reserved_smem_offset_0" => Some(self.reserved(0)),
            "reserved_smem_offset_1" => Some(self.reserved(RESERVED_SHARED as i64 / 2)),
            "reserved_smem_offset_end" | "reserved_smem_offset_cap" => {
                Some(self.reserved(RESERVED_SHARED as i64))
            }
            "envreg1" => Some(self.constant_field(types::I32, offset_of!(DeviceThread, workspace))),
            "envreg2" => {
                Some(self.constant_field(types::I32, offset_of!(DeviceThread, workspace) + 4))
            }
            _ => {
                let number = name
                    .strip_prefix("envreg")
                    .or_else(|| name.strip_prefix("pm"))?;
                number
                    .bytes()
                    .all(|b| b.is_ascii_digit())
                    .then(|| self.b.ins().iconst(types::I32, 0))
            }
        }
    }

    pub(super) fn lane(&mut self) -> Value {
        self.constant_field(types::I32, offset_of!(DeviceThread, lane))
    }

    /// A shared address in what the system keeps for itself, behind the block's own memory.
    fn reserved(&mut self, offset: i64) -> Value {
        let end = self.constant_field(types::I32, offset_of!(DeviceThread, shared_size));
        self.b.ins().iadd_imm_s(end, offset)
    }

    fn lane_mask(&mut self, name: &str) -> Value {
        let lane = self.lane();
        let one = self.b.ins().iconst(types::I32, 1);
        let own = self.b.ins().ishl(one, lane);
        let below = self.b.ins().iadd_imm_s(own, -1);
        match name {
            "lanemask_eq" => own,
            "lanemask_lt" => below,
            "lanemask_le" => self.b.ins().bor(below, own),
            "lanemask_ge" => self.b.ins().bnot(below),
            _ => {
                let up_to = self.b.ins().bor(below, own);
                self.b.ins().bnot(up_to)
            }
        }
    }

    fn clock(&mut self, wall: i64) -> Value {
        let wall = self.b.ins().iconst(types::I64, wall);
        let value = self.call_plain(
            helpers::clock as *const () as usize,
            &[wall],
            Some(types::I64),
        );
        value.unwrap_or(wall)
    }
}
