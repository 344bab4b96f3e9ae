//! Reads the lines that programs print (programs/common.h defines them).

use anyhow::{Result, bail, ensure};

/// What one complete or partial run printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The number drawn at the start of the process.
    pub nonce: Option<String>,
    /// Each finished step, in order of printing.
    pub steps: Vec<u64>,
    /// The number printed at the end.
    pub closing_nonce: Option<String>,
    /// The digest, once printed.
    pub digest: Option<String>,
}

impl Output {
    /// Reads a log. A last line without its newline is left out.
    ///
    /// # Errors
    /// When a program began twice: the prefix was executed again.
    pub fn parse(text: &str) -> Result<Self> {
        let mut out = Self::default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["run", nonce] => {
                    if out.nonce.is_some() {
                        bail!("the program began a second time: `{line}`");
                    }
                    out.nonce = Some((*nonce).to_owned());
                }
                ["step", k, "of", _] => out.steps.push(k.parse()?),
                ["done", nonce] => out.closing_nonce = Some((*nonce).to_owned()),
                ["digest", _, digest] => out.digest = Some((*digest).to_owned()),
                _ => {}
            }
        }
        Ok(out)
    }

    /// Demands a finished run in which each step happened once, in order.
    ///
    /// # Errors
    /// Names the promise that was broken.
    pub fn check_complete(&self, reference: &Output) -> Result<()> {
        ensure!(
            self.digest.is_some(),
            "no digest was printed; steps: {:?}",
            self.steps
        );
        ensure!(self.nonce.is_some(), "the first line is missing");
        ensure!(
            self.nonce == self.closing_nonce,
            "the process that ended ({:?}) is not the one that began ({:?})",
            self.closing_nonce,
            self.nonce
        );
        ensure!(
            self.steps == reference.steps,
            "steps differ from the straight run: {:?} against {:?}",
            self.steps,
            reference.steps
        );
        ensure!(
            self.digest == reference.digest,
            "digest {:?}, straight run {:?}",
            self.digest,
            reference.digest
        );
        Ok(())
    }
}
