//! Prints the instrumented form of a PTX file: `instrument writes|reads|accesses FILE`. For looking at what a pass does, and for
//! feeding an assembler.
use fermata_ptx::passes::{Guard, guard};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, what, file] = &args[..] else {
        return Err("usage: instrument writes|reads|accesses FILE".into());
    };
    let what = match what.as_str() {
        "writes" => Guard::Writes,
        "reads" => Guard::Reads,
        "accesses" => Guard::Accesses,
        other => return Err(format!("no such check: {other}").into()),
    };
    let module = fermata_ptx::parse(&std::fs::read_to_string(file)?)?;
    let instrumented = guard(&module, what, &|_| true)?;
    for (kernel, why) in &instrumented.refused {
        eprintln!("{kernel}: {why}");
    }
    println!("{}", instrumented.module);
    Ok(())
}
