//! Time to compute a schedule: 8 GPUs of a cube mesh, and 16 to 128 of a switched machine.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fermata_planner::{Problem, baseline, greedy, min_time, optimum, simulate, topology, trace};

fn schedule(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule");
    let machines = [
        ("dgx1/8", topology::dgx1()),
        ("switch/16", topology::all_to_all(16, 48e9, 12e9)),
        ("switch/64", topology::all_to_all(64, 48e9, 12e9)),
        ("switch/128", topology::all_to_all(128, 48e9, 12e9)),
        ("ports/128", topology::switched(128, 397e9, 55.5e9, 167e9)),
    ];
    for (name, machine) in machines {
        let gpus = machine.host.len();
        let sizes = &trace::synthetic(gpus, 1, 3)[0];
        let problem = Problem::from_sizes(machine, sizes, &vec![80_000_000; gpus]);
        group.bench_function(BenchmarkId::new("local_only", name), |b| {
            b.iter(|| baseline::local_only(&problem))
        });
        group.bench_function(BenchmarkId::new("greedy", name), |b| {
            b.iter(|| greedy::greedy(&problem))
        });
        group.bench_function(BenchmarkId::new("optimum", name), |b| {
            b.iter(|| optimum::optimum(&problem))
        });
        if gpus <= 16 {
            group.bench_function(BenchmarkId::new("min_time", name), |b| {
                b.iter(|| min_time::min_time(&problem, simulate::PAPER_UNIT))
            });
        }
    }
}

criterion_group!(benches, schedule);
criterion_main!(benches);
