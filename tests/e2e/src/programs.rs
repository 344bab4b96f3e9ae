//! The programs that are crossed, and the digests their source records.

const DIGESTS: &str = include_str!("../../../programs/digests.txt");

/// A program with the options it is run with.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// File name in `build/programs`.
    pub name: &'static str,
    /// Options; empty means the defaults, for which a digest is recorded.
    pub args: &'static [&'static str],
    /// Whether the quick selection holds it.
    pub quick: bool,
}

const fn plain(name: &'static str) -> Program {
    Program {
        name,
        args: &[],
        quick: false,
    }
}

const fn quick(name: &'static str) -> Program {
    Program {
        name,
        args: &[],
        quick: true,
    }
}

/// Every program that can be checkpointed. `static` is not: it is refused.
pub const PROGRAMS: &[Program] = &[
    quick("heat2d"),
    plain("jacobi"),
    plain("nbody"),
    plain("bfs"),
    plain("kmeans"),
    plain("lu"),
    plain("srad"),
    plain("bitonic"),
    plain("histogram"),
    plain("scan"),
    plain("matmul"),
    quick("streams"),
    quick("graphs"),
    quick("managed"),
    quick("pinned"),
    quick("symbols"),
    quick("threads"),
    plain("peer"),
    quick("driver"),
    quick("churn"),
    quick("server"),
    quick("longkernel"),
    plain("print"),
    plain("forks"),
];

impl Program {
    /// The digest recorded for the default options.
    pub fn recorded_digest(&self) -> Option<&'static str> {
        if !self.args.is_empty() {
            return None;
        }
        DIGESTS
            .lines()
            .find_map(|line| line.strip_prefix(self.name)?.strip_prefix(' '))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_recorded_digest() {
        for program in PROGRAMS {
            let digest = program.recorded_digest().unwrap_or_default();
            assert_eq!(digest.len(), 16, "`{}`", program.name);
        }
    }
}
