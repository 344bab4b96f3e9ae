//! MPI jobs of one host: launcher and ranks are one session, which is checkpointed while messages are on their way, killed, and
//! restored with its result. The MPIs are those of `tools/setup.sh mpi mpi-cuda`.

use std::ffi::OsString;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::fermata::on_devices;
use fermata_e2e::output::Output;
use fermata_e2e::programs;
use fermata_e2e::scene::{Scene, wait_until};

/// The number of ranks for which a result is recorded.
const RANKS: usize = 4;
const STEPS: u64 = 60;
/// Ports that the system gives to no other program by itself: they stay free between the end of a job and its restore.
const PORTS: Range<u16> = 20_000..32_000;

/// An MPI, and how its messages travel.
struct Mpi {
    /// The part of `tools/setup.sh` that it comes from, and its folder in `.deps`.
    part: &'static str,
    program: &'static str,
    launcher: &'static str,
    options: &'static [&'static str],
    /// Of the program.
    more: &'static [&'static str],
    /// Whether ranks map memory of each other's devices.
    maps: bool,
    variables: &'static [(&'static str, &'static str)],
    /// Where its libraries lie in its folder.
    libraries: &'static [&'static str],
    /// Variables that name a place in its folder: Open MPI looks for its parts where it was built to be.
    places: &'static [(&'static str, &'static str)],
}

/// Where Debian's packages put libraries.
const DEBIAN: &[&str] = &[
    "usr/lib/x86_64-linux-gnu/openmpi/lib",
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
];
const AS_ROOT: &[(&str, &str)] = &[
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Shared memory, and its launcher with a process that starts the ranks.
const MPICH: Mpi = Mpi {
    part: "mpi",
    program: "ring-mpich",
    launcher: "usr/bin/mpiexec.hydra",
    options: &[],
    more: &[],
    maps: false,
    variables: &[],
    libraries: DEBIAN,
    places: &[],
};

/// Shared memory, and the memory of other processes read directly.
const OPEN_MPI: Mpi = Mpi {
    part: "mpi",
    program: "ring-openmpi",
    launcher: "usr/bin/orterun",
    options: &["--oversubscribe"],
    more: &[],
    maps: false,
    variables: AS_ROOT,
    libraries: DEBIAN,
    places: &[
        ("OPAL_PREFIX", "usr"),
        ("OPAL_LIBDIR", "usr/lib/x86_64-linux-gnu"),
        (
            "OPAL_PKGLIBDIR",
            "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3",
        ),
        ("OPAL_DATADIR", "usr/share"),
    ],
};

/// Device memory: small messages through shared host memory that is registered with the driver, large ones by CUDA IPC.
const OPEN_MPI_CUDA: Mpi = Mpi {
    part: "mpi-cuda",
    program: "ring-openmpi",
    launcher: "bin/mpirun",
    options: &[
        "--oversubscribe",
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "self,smcuda",
    ],
    more: &["--direct", "1"],
    maps: true,
    variables: AS_ROOT,
    libraries: &["lib"],
    places: &[("OPAL_PREFIX", "")],
};

impl Mpi {
    /// Where it is installed.
    fn folder(&self) -> Result<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.canonicalize()?.join(".deps").join(self.part);
        if !folder.join("done").exists() {
            let Self { part, .. } = self;
            bail!(
                "no MPI in `{}`: run `tools/setup.sh {part}`",
                folder.display()
            );
        }
        Ok(folder)
    }

    /// What it needs in the environment of a job.
    fn environment(&self, scene: &Scene) -> Result<Vec<(&'static str, OsString)>> {
        let at = self.folder()?;
        let [one, other] = free_ports()?;
        // Of the launchers, and of PMIx in Open MPI's; its ranks listen from port 1024 on.
        let ports = [
            ("MPIEXEC_PORT_RANGE", format!("{one}:{other}")),
            ("OMPI_MCA_oob_tcp_dynamic_ipv4_ports", one.to_string()),
            ("PMIX_MCA_ptl_base_ipv4_port", other.to_string()),
        ];
        let mut all = vec![("TMPDIR", scene.sandbox().work().into())];
        all.extend(self.places.iter().map(|(k, v)| (*k, at.join(v).into())));
        all.extend(ports.map(|(k, v)| (k, v.into())));
        let folders = self.libraries.iter().map(|it| at.join(it));
        all.push(("LD_LIBRARY_PATH", std::env::join_paths(folders)?));
        all.extend(self.variables.iter().map(|(k, v)| (*k, (*v).into())));
        Ok(all)
    }

    /// Starts a job of so many ranks that stands still after its last step, as session `name`.
    fn start(&self, scene: &Scene, name: &str, ranks: usize) -> Result<()> {
        let mut variables = self.environment(scene)?;
        let hold = scene.hold(STEPS)?;
        variables.extend(hold.map(|(k, v)| (k, v.into())));
        let program = scene.tree().program(&format!("mpi/{}", self.program));
        let program = program.context("run `make programs` once the MPIs are there")?;
        let program = program.to_str().context("a path")?;
        let launcher = self.folder()?.join(self.launcher);
        let launcher = launcher.to_str().context("a path")?;
        // While the first rank pauses the others wait for it within MPI: they spin. Many of them leave the processors to other tests.
        let patience = if ranks > RANKS { "10" } else { "0" };
        let ranks = ranks.to_string();
        let job = ["-n", &ranks, program, "--pause-ms", "100"];
        let words = [
            &["-n", patience, launcher][..],
            self.options,
            &job,
            self.more,
        ]
        .concat();
        let nice = Path::new("nice");
        scene
            .fermata()
            .run_with(&variables, name, Device::Soft, nice, &words)?;
        Ok(())
    }
}

/// Two of [`PORTS`] at which nobody listens, the lesser one first.
fn free_ports() -> Result<[u16; 2]> {
    let mut free = PORTS.filter(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok());
    let two = free.next().zip(free.next()).context("no free port")?;
    Ok(two.into())
}

/// One job at a time: a restored job needs the ports that it had, which another would be given after its end.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a job of [`RANKS`] ranks prints.
fn recorded() -> Output {
    Output {
        steps: (1..=STEPS).collect(),
        digest: programs::digest("ring").map(str::to_owned),
        ..Output::default()
    }
}

/// What session `name` has printed by its end.
fn result(scene: &Scene, name: &str) -> Result<Output> {
    wait_until("a job ends", || {
        Ok(scene.fermata().session(name)?.state == "exited")
    })?;
    Output::parse(&scene.fermata().log(name)?)
}

/// Demands that session `name` ends with this result.
fn check_result(scene: &Scene, name: &str, expected: &Output) -> Result<()> {
    let checked = result(scene, name)?.check_complete(expected);
    checked.with_context(|| format!("the log is: {:?}", scene.fermata().log(name)))
}

/// A job is checkpointed by one protocol after the other, each time in the middle of its work, killed, and restored.
fn comes_back(mpi: &Mpi, ranks: usize, expected: &Output) -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    mpi.start(&scene, "job-0", ranks)?;
    for (at, mode) in [Mode::Cow, Mode::Stop, Mode::Snapshot]
        .into_iter()
        .enumerate()
    {
        let (name, next) = (format!("job-{at}"), format!("job-{}", at + 1));
        let image = format!("image-{at}");
        let done = Output::parse(&fermata.log(&name)?)?.steps.len();
        // At the last step the job stands still.
        scene.wait_steps(&name, (done + 2 + 3 * at).min(STEPS as usize))?;
        let session = fermata.session(&name)?;
        ensure!(session.processes.len() == ranks, "{:?}", session.processes);
        let shared = on_devices(&fermata.memory_of(&name)?, "shared")?;
        ensure!((shared > 0) == mpi.maps, "{shared} bytes are shared");
        fermata.checkpoint(&name, &image, mode)?;
        fermata.kill(&name)?;
        scene
            .try_restore(&image, &next)?
            .success("fermata restore")?;
    }
    scene.let_go()?;
    check_result(&scene, "job-3", expected)?;
    // The job has removed what it had made; the image has it all the same.
    scene
        .try_restore("image-1", "again")?
        .success("fermata restore")?;
    check_result(&scene, "again", expected)?;
    scene.close()
}

#[test]
fn a_job_of_mpich_comes_back_with_its_result() -> Result<()> {
    let _turn = turn();
    comes_back(&MPICH, RANKS, &recorded())
}

#[test]
fn a_job_of_open_mpi_comes_back_with_its_result() -> Result<()> {
    let _turn = turn();
    comes_back(&OPEN_MPI, RANKS, &recorded())
}

#[test]
fn a_job_that_hands_device_memory_to_mpi_comes_back_with_its_result() -> Result<()> {
    let _turn = turn();
    comes_back(&OPEN_MPI_CUDA, RANKS, &recorded())
}

#[test]
fn a_job_of_eight_ranks_comes_back_with_its_result() -> Result<()> {
    let _turn = turn();
    let scene = Scene::new()?;
    OPEN_MPI_CUDA.start(&scene, "straight", 8)?;
    scene.let_go()?;
    let straight = result(&scene, "straight")?;
    ensure!(straight.steps.len() as u64 == STEPS, "{straight:?}");
    scene.close()?;
    comes_back(&OPEN_MPI_CUDA, 8, &straight)
}

#[test]
fn a_job_of_open_mpi_goes_on_after_its_checkpoint() -> Result<()> {
    let _turn = turn();
    let scene = Scene::new()?;
    OPEN_MPI.start(&scene, "job", RANKS)?;
    scene.wait_steps("job", 3)?;
    scene.fermata().checkpoint("job", "image", Mode::Cow)?;
    scene.let_go()?;
    check_result(&scene, "job", &recorded())?;
    // It has ended, and what it shared with it.
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    check_result(&scene, "again", &recorded())?;
    scene.close()
}
