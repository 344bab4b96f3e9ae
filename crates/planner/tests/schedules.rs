//! Schedules against the paper's worked example, against each other and against a linear program.

use fermata_planner::{
    Problem, Topology, baseline, greedy, min_time, optimum, simulate, topology, trace,
};
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};
use proptest::prelude::*;

const MB: u64 = 1_000_000;

/// Figure 1: G0 and G6 overflow, G1 and G4 have room.
fn figure_1() -> Problem {
    let mut remainder = vec![0; 8];
    let mut spare = vec![0; 8];
    remainder[0] = 480 * MB;
    remainder[6] = 240 * MB;
    spare[1] = 480 * MB;
    spare[4] = 480 * MB;
    Problem {
        topology: topology::dgx1(),
        remainder,
        spare,
    }
}

#[test]
fn figure_1_gives_the_published_times() {
    let problem = figure_1();
    let ms = |s: fermata_planner::Schedule| {
        assert!(s.is_valid_for(&problem));
        s.seconds * 1e3
    };
    assert_eq!(ms(greedy::greedy(&problem)), 20.0);
    assert_eq!(ms(baseline::local_only(&problem)), 40.0);
    assert!((ms(min_time::min_time(&problem, MB)) - 6.7).abs() < 0.05);
    assert!((ms(optimum::optimum(&problem)) - 240.0 / 36.0).abs() < 1e-6);
}

/// The least time by linear programming: variables x(i, j), x(i, host) and t.
fn by_linear_program(problem: &Problem) -> f64 {
    let t = &problem.topology;
    let gpus = problem.gpus();
    let mut vars = ProblemVariables::new();
    let time = vars.add(variable().min(0));
    let to_host: Vec<_> = (0..gpus).map(|_| vars.add(variable().min(0))).collect();
    let mut pairs = Vec::new();
    for i in 0..gpus {
        for j in 0..gpus {
            if problem.remainder[i] > 0 && problem.spare[j] > 0 && t.links[i][j] > 0.0 {
                pairs.push((i, j, vars.add(variable().min(0))));
            }
        }
    }
    // In MB and ms, so that coefficients are near one.
    let rate = |r: f64| r / 1e9;
    let size = |b: u64| b as f64 / 1e6;
    let mut model = vars.minimise(time).using(microlp);
    let sum = |of: &dyn Fn(usize, usize) -> bool| -> Expression {
        pairs
            .iter()
            .filter(|(i, j, _)| of(*i, *j))
            .map(|(_, _, x)| *x)
            .sum()
    };
    for &(i, j, x) in &pairs {
        model = model.with(constraint!(x <= rate(t.links[i][j]) * time));
    }
    for g in 0..gpus {
        model = model.with(constraint!(
            sum(&|i, _| i == g) + to_host[g] == size(problem.remainder[g])
        ));
        model = model.with(constraint!(sum(&|_, j| j == g) <= size(problem.spare[g])));
        model = model.with(constraint!(to_host[g] <= rate(t.host[g]) * time));
        if let Some(port) = &t.port_out {
            model = model.with(constraint!(sum(&|i, _| i == g) <= rate(port[g]) * time));
        }
        if let Some(port) = &t.port_in {
            model = model.with(constraint!(sum(&|_, j| j == g) <= rate(port[g]) * time));
        }
    }
    if let Some(total) = t.host_total {
        model = model.with(constraint!(
            to_host.iter().copied().sum::<Expression>() <= rate(total) * time
        ));
    }
    model
        .solve()
        .expect("always feasible through the host")
        .value(time)
        / 1e3
}

fn problems() -> impl Strategy<Value = Problem> {
    let sizes = prop::collection::vec((1..400u64, 1..400u64), 2..9);
    let links = prop::collection::vec(
        prop_oneof![Just(0.0), Just(24e9), Just(48e9), Just(400e9)],
        64,
    );
    (sizes, links, any::<[bool; 3]>()).prop_map(|(sizes, links, [ports, total, hub])| {
        let gpus = sizes.len();
        let link = |i: usize, j: usize| {
            if i == j {
                0.0
            } else if hub {
                400e9
            } else {
                links[8 * i + j]
            }
        };
        let topology = Topology {
            links: (0..gpus)
                .map(|i| (0..gpus).map(|j| link(i, j)).collect())
                .collect(),
            host: vec![12e9; gpus],
            port_out: ports.then(|| vec![60e9; gpus]),
            port_in: ports.then(|| vec![50e9; gpus]),
            host_total: total.then_some(30e9),
        };
        let (want, free): (Vec<u64>, Vec<u64>) =
            sizes.iter().map(|(w, f)| (w * MB, f * MB)).unzip();
        Problem::from_sizes(topology, &want, &free)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn optimum_equals_the_linear_program_and_none_is_better(problem in problems()) {
        problem.check().expect("generated problems are consistent");
        let best = optimum::optimum(&problem);
        prop_assert!(best.is_valid_for(&problem));
        let exact = by_linear_program(&problem);
        prop_assert!((best.seconds - exact).abs() <= 1e-6 * exact + 1e-9, "{} against {exact}", best.seconds);
        for other in [baseline::local_only(&problem), greedy::greedy(&problem), min_time::min_time(&problem, MB)] {
            prop_assert!(other.is_valid_for(&problem));
            // The optimum is exact to a byte per link.
            prop_assert!(other.seconds >= best.seconds - 1e-9);
        }
    }
}

#[test]
fn collaboration_pays_where_the_paper_says() {
    let rows =
        simulate::run(&trace::application(8, 1), &topology::dgx1(), 80 * MB).expect("8 GPUs");
    let gain = |range: std::ops::Range<usize>| {
        rows[range]
            .iter()
            .filter(|r| r.optimum > 0.0)
            .map(|r| r.local_only / r.optimum)
            .fold(1.0, f64::max)
    };
    assert!(gain(350..450) > 2.0);
    assert_eq!(gain(0..340), 1.0);
}

#[test]
fn inconsistent_problems_are_named() {
    let mut problem = figure_1();
    problem.topology.links[3].pop();
    assert!(
        problem
            .check()
            .expect_err("a short row")
            .to_string()
            .contains("links")
    );
    let mut problem = figure_1();
    problem.topology.host[2] = 0.0;
    assert!(
        problem
            .check()
            .expect_err("no host link")
            .to_string()
            .contains("GPU 2")
    );
}
