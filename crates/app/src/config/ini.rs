//! The configuration with FTI's sections and keys (FTI's documentation, "Configuration").
//!
//! Levels have an interval in minutes there; the shortest becomes ours, and the others every how many of
//! those. Keys that have no meaning here are taken and noted.

use super::job::{Config, Interval};
use super::nearest::nearest;
use crate::{AppError, Result};

/// Keys that mean something here.
const USED: [&str; 12] = [
    "ckpt_dir",
    "glbl_dir",
    "meta_dir",
    "ckpt_l1",
    "ckpt_l2",
    "ckpt_l3",
    "ckpt_l4",
    "keep_last_ckpt",
    "dcp_block_size",
    "failure",
    "exec_id",
    "inline_l4",
];
/// Keys that are accepted and do nothing.
const IDLE: [&str; 34] = [
    "head",
    "node_size",
    "group_size",
    "max_sync_intv",
    "ckpt_io",
    "enable_staging",
    "enable_dcp",
    "dcp_mode",
    "dcp_l4",
    "keep_l4_ckpt",
    "verbosity",
    "inline_l2",
    "inline_l3",
    "fast_forward",
    "enable_dcp_fallback",
    "rank",
    "number",
    "position",
    "frequency",
    "block_size",
    "transfer_size",
    "general_tag",
    "ckpt_tag",
    "stage_tag",
    "final_tag",
    "mpi_tag",
    "local_test",
    "lustre_striping_unit",
    "lustre_striping_factor",
    "lustre_striping_offset",
    "h5_single_file_enable",
    "h5_single_file_dir",
    "h5_single_file_prefix",
    "h5_single_file_inline",
];
const SECTIONS: [&str; 4] = ["basic", "restart", "injection", "advanced"];

/// Whether the text has FTI's first section.
pub(super) fn is_fti(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim().eq_ignore_ascii_case("[basic]"))
}

pub(super) fn parse(text: &str, from: &str) -> Result<Config> {
    let wrong = |what: String| AppError::Config {
        from: from.into(),
        what,
    };
    let mut config = Config::default();
    let mut minutes = [0.0f64; 5];
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let section = section.trim().to_lowercase();
            if !SECTIONS.contains(&section.as_str()) {
                return Err(AppError::UnknownKey {
                    from: from.into(),
                    key: format!("[{section}]"),
                    near: nearest(&section, &SECTIONS),
                });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(wrong(format!(
                "`{line}` is neither a section nor `key = value`"
            )));
        };
        let key = key.trim().to_lowercase();
        let value = value.trim().trim_matches('"');
        let number = || -> Result<f64> {
            value
                .parse()
                .map_err(|_| wrong(format!("`{key}` is `{value}`; it must be a number")))
        };
        match key.as_str() {
            "ckpt_dir" => config.local = vec![value.into()],
            "glbl_dir" => config.shared = Some(value.into()),
            "ckpt_l1" | "ckpt_l2" | "ckpt_l3" | "ckpt_l4" => {
                let level = usize::from(key.as_bytes()[6] - b'0');
                minutes[level] = number()?;
            }
            "keep_last_ckpt" => config.keep_at_end = number()? != 0.0,
            "dcp_block_size" => config.block_bytes = number()? as u32,
            "inline_l4" => config.background = number()? == 0.0,
            "failure" | "exec_id" | "meta_dir" => config.notes.push(format!(
                "`{key}` is not needed: checkpoints are found by the job's folder"
            )),
            idle if IDLE.contains(&idle) => {
                config.notes.push(format!("`{key}` has no effect"));
            }
            _ => {
                let known: Vec<&'static str> = USED.iter().chain(&IDLE).copied().collect();
                return Err(AppError::UnknownKey {
                    from: from.into(),
                    key,
                    near: nearest(line.split('=').next().unwrap_or("").trim(), &known),
                });
            }
        }
    }
    let shortest = minutes
        .iter()
        .copied()
        .filter(|m| *m > 0.0)
        .fold(f64::INFINITY, f64::min);
    if shortest.is_finite() {
        config.interval = Interval::Seconds(shortest * 60.0);
        for (level, minutes) in minutes.iter().enumerate().skip(2) {
            if *minutes > 0.0 {
                config.every[level] = (minutes / shortest).round().max(1.0) as u32;
            }
        }
    }
    Ok(config)
}
