//! The programs that are crossed, and the digests their source records.

const DIGESTS: &str = include_str!("../../../programs/digests.txt");

/// A program with the options it is run with.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// File name in `build/programs`.
    pub name: &'static str,
    /// Options in the matrix, which make it work for a second or so; empty means
    /// the defaults.
    pub args: &'static [&'static str],
    /// Whether the quick selection holds it.
    pub quick: bool,
}

const fn plain(name: &'static str, args: &'static [&'static str]) -> Program {
    Program {
        name,
        args,
        quick: false,
    }
}

const fn quick(name: &'static str, args: &'static [&'static str]) -> Program {
    Program {
        name,
        args,
        quick: true,
    }
}

/// Every program that can be checkpointed. `static` is not: it is refused.
pub const PROGRAMS: &[Program] = &[
    quick("heat2d", &[]),
    plain("jacobi", &["--size", "1024"]),
    plain("nbody", &[]),
    plain("bfs", &["--steps", "10"]),
    plain("kmeans", &["--steps", "200"]),
    plain("lu", &["--steps", "40"]),
    plain("srad", &["--steps", "500"]),
    plain("bitonic", &[]),
    plain("histogram", &["--steps", "60"]),
    plain("scan", &[]),
    plain("matmul", &[]),
    quick("streams", &["--steps", "150"]),
    quick("graphs", &["--steps", "2400"]),
    quick("managed", &["--steps", "500"]),
    quick("pinned", &["--steps", "300"]),
    quick("symbols", &["--steps", "20000"]),
    quick("threads", &["--steps", "2000"]),
    plain("peer", &["--steps", "3000"]),
    quick("driver", &["--steps", "1500"]),
    quick("churn", &[]),
    quick("server", &["--steps", "10000"]),
    quick("longkernel", &[]),
    plain("print", &["--steps", "40000"]),
    plain("forks", &["--steps", "1000"]),
];

impl Program {
    /// The same program with its default options.
    pub fn with_defaults(self) -> Self {
        Self { args: &[], ..self }
    }

    /// The digest recorded for the default options, if those are used.
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
            let digest = program
                .with_defaults()
                .recorded_digest()
                .unwrap_or_default();
            assert_eq!(digest.len(), 16, "`{}`", program.name);
        }
    }
}
