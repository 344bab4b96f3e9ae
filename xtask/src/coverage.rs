//! Task `coverage`: docs/coverage.md, every function with its support level.
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fermata_abi::table::DRIVER;

use crate::exports::Shim;
use crate::output::Generated;
use crate::support::{Level, NOTES, Support};

/// The page.
pub fn page(root: &Path) -> Result<Generated> {
    let mut text = format!(
        "# API coverage\n\n\
         To see whether the driver functions that a program calls are supported, look them up here. Every\n\
         function of the CUDA 13.0 headers is exported: `yes` works as documented, `partial` with the\n\
         restriction noted, `no` refuses with \"not supported\". Variants for per-thread default streams\n\
         (`_ptsz`, `_ptds`) have the level of the plain function. The runtime API is not listed: programs\n\
         bring NVIDIA's runtime, which calls these functions ([decision 028](decisions/028-the-programs-own-runtime.md)).\n\n\
         Made by `cargo xtask coverage` from the API table, the sources, and the notes in `{NOTES}`; do not\n\
         edit.\n\n"
    );
    let shims = Shim::ALL.map(|shim| Support::of(root, shim).map(|support| (shim, support)));
    let [softgpu, client] = shims;
    let driver = [softgpu?, client?];
    let [(_, softgpu), (_, client)] = &driver;
    for function in DRIVER {
        let is_refused = |by: &Support| by.level(function) == Level::No;
        // Where both refuse it, the reason of the library in the program is enough.
        let refuses = match is_refused(client) {
            true => Some((client, "client-refused")),
            false => is_refused(softgpu).then_some((softgpu, "softgpu-refused")),
        };
        if let Some((support, section)) = refuses {
            ensure!(
                support.reason(function).is_some(),
                "`{NOTES}` does not say in `{section}` why `{}` is refused",
                function.symbol
            );
        }
    }
    summary(&mut text, &driver)?;
    section(
        &mut text,
        "Driver API",
        &["software GPU", "in the program"],
        &driver,
    )?;
    Ok(Generated {
        path: PathBuf::from("docs/coverage.md"),
        text,
    })
}

fn summary(text: &mut String, shims: &[(Shim, Support)]) -> Result<()> {
    text.push_str(
        "| library | yes | partial | no | functions |\n| --- | --- | --- | --- | --- |\n",
    );
    for (shim, support) in shims {
        let levels: Vec<_> = DRIVER.iter().map(|f| support.level(f)).collect();
        let yes = levels.iter().filter(|l| **l == Level::Yes).count();
        let no = levels.iter().filter(|l| **l == Level::No).count();
        let all = levels.len();
        let name = match shim {
            Shim::Softgpu => "software GPU (`libcuda.so.1`)",
            Shim::Client => "library in the program (`libcuda.so.1`)",
        };
        writeln!(
            text,
            "| {name} | {yes} | {} | {no} | {all} |",
            all - yes - no
        )?;
    }
    Ok(())
}

fn section(
    text: &mut String,
    title: &str,
    columns: &[&str],
    shims: &[(Shim, Support)],
) -> Result<()> {
    let rule = vec!["---"; columns.len()].join(" | ");
    write!(
        text,
        "\n## {title}\n\n| function | {} | notes |\n| --- | {rule} | --- |\n",
        columns.join(" | ")
    )?;
    for function in DRIVER {
        let mut notes = Vec::new();
        let mut cells = Vec::new();
        for ((_, support), column) in shims.iter().zip(columns) {
            cells.push(match support.level(function) {
                Level::Yes => "yes",
                Level::No => {
                    if let Some(reason) = support.reason(function) {
                        notes.push(format!("{column}: {reason}"));
                    }
                    "no"
                }
                Level::Partial(note) => {
                    notes.push(format!("{column}: {note}"));
                    "partial"
                }
            });
        }
        let cells = cells.join(" | ");
        writeln!(
            text,
            "| `{}` | {cells} | {} |",
            function.symbol,
            notes.join("; ")
        )?;
    }
    Ok(())
}
