//! The check before one access, and the function it calls.
//!
//! A kernel that may touch memory that is not mapped is ended by the device in the access itself, with its context. So
//! there every thread outside reports first, even if another has reported, and no access follows a report that is still on
//! its way.

use super::PassError;
use crate::ast::{Function, Instruction, Item, Operand, Statement, Type};
use crate::parse;

/// Which accesses an instrumented kernel checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// Stores, atomics and reductions: for checkpoints.
    Writes,
    /// Loads and atomics: for looking at programs.
    Reads,
    /// All of these, each reported before it is made, for it may be the kernel's last: for restores.
    Accesses,
}

/// Searches the table; `%s` is where addresses that may not be global are told apart, `%o` where one of the threads
/// outside is picked, `%w` what follows a report. Only the first access outside is reported; later ones cost one look at a
/// word of device memory, because a kernel that mis-speculates usually does so with every thread.
const SEARCH: &str = "
(.param .b64 table, .param .b64 address, .param .b32 bytes)
{
    .reg .pred %p<3>;
    .reg .b64 %rd<13>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    %s
    ld.param.u64 %rd3, [table];
    ld.param.u32 %r1, [bytes];
    cvt.u64.u32 %rd0, %r1;
    add.s64 %rd2, %rd1, %rd0;
    mov.u64 %rd5, 0;
    ld.global.u64 %rd6, [%rd3+24];
SEARCH:
    setp.ge.u64 %p1, %rd5, %rd6;
    @%p1 bra FOUND;
    add.s64 %rd7, %rd5, %rd6;
    shr.u64 %rd7, %rd7, 1;
    shl.b64 %rd8, %rd7, 4;
    add.s64 %rd9, %rd3, %rd8;
    ld.global.u64 %rd10, [%rd9+32];
    setp.le.u64 %p2, %rd10, %rd1;
    @%p2 add.s64 %rd5, %rd7, 1;
    @!%p2 mov.u64 %rd6, %rd7;
    bra SEARCH;
FOUND:
    setp.eq.u64 %p1, %rd5, 0;
    @%p1 bra OUTSIDE;
    shl.b64 %rd8, %rd5, 4;
    add.s64 %rd9, %rd3, %rd8;
    ld.global.u64 %rd10, [%rd9+24];
    setp.le.u64 %p1, %rd2, %rd10;
    @%p1 bra DONE;
OUTSIDE:
    ld.volatile.global.u64 %rd11, [%rd3];
    setp.ne.u64 %p1, %rd11, 0;
    @%p1 bra DONE;
    %o
    ld.global.u64 %rd12, [%rd3+8];
    st.global.u64 [%rd12+8], %rd0;
    membar.sys;
    st.volatile.global.u64 [%rd12], %rd1;
    %w
DONE:
    ret;
}
";

/// One thread reports: the first.
const ONE: &str =
    "atom.global.exch.b64 %rd11, [%rd3], 1; setp.ne.u64 %p1, %rd11, 0; @%p1 bra DONE;";
/// Where a report must be there before the access is made, all do until one is; of several the record may hold the address
/// of one and the size of another.
const THERE: &str = "membar.sys; st.volatile.global.u64 [%rd3], 1;";

/// Leaves the function for addresses of other spaces.
const APART: &str = "isspacep.global %p1, %rd1; @!%p1 bra DONE;";

const HEADER: &str = ".version 6.3\n.target sm_75\n.address_size 64\n";

/// The functions that checks call.
pub(super) fn functions(what: Guard) -> Vec<Item> {
    let (one, there) = match what {
        Guard::Accesses => ("", THERE),
        Guard::Writes | Guard::Reads => (ONE, ""),
    };
    let search = SEARCH.replace("%o", one).replace("%w", there);
    let (plain, generic) = (search.replace("%s", ""), search.replace("%s", APART));
    let text =
        format!("{HEADER}.func __fermata_check{plain}\n.func __fermata_check_generic{generic}");
    parse(&text).expect("the checking functions are PTX").items
}

/// The variable through which functions that are called find the table.
pub(super) fn shared_variable() -> Vec<Item> {
    let text = format!("{HEADER}.shared .align 8 .b64 __fermata_table;");
    parse(&text).expect("a declaration is PTX").items
}

/// Statements of a text that stands in a body.
pub(super) fn statements(text: &str) -> Vec<Statement> {
    match parse(&format!("{HEADER}.func f()\n{{ {text} }}"))
        .expect("a pass writes PTX")
        .items
        .pop()
    {
        Some(Item::Function(Function {
            body: Some(body), ..
        })) => body,
        _ => Vec::new(),
    }
}

/// What an instruction does to global memory, as far as a guard cares.
enum Effect {
    None,
    /// Its `n`-th address is accessed.
    Access(usize),
    Unreadable,
}

/// State spaces whose accesses are not to global memory.
const ELSEWHERE: [&str; 9] = [
    "param",
    "param::entry",
    "param::func",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "const",
    "tensor",
];

/// Instructions with an address in brackets that read and write nothing of the program's.
const HARMLESS: [&str; 14] = [
    "prefetch",
    "prefetchu",
    "applypriority",
    "createpolicy",
    "ldmatrix",
    "stmatrix",
    "mbarrier",
    "wgmma",
    "tcgen05",
    "fence",
    "txq",
    "suq",
    "istypep",
    "clusterlaunchcontrol",
];

fn effect(i: &Instruction, what: Guard) -> Effect {
    let has = |m: &str| i.modifiers.iter().any(|x| &**x == m);
    let elsewhere = ELSEWHERE.iter().any(|space| has(space));
    let (reads, writes) = (what != Guard::Writes, what != Guard::Reads);
    let access_if = |yes: bool| if yes { Effect::Access(0) } else { Effect::None };
    let unreadable_if = |yes: bool| {
        if yes {
            Effect::Unreadable
        } else {
            Effect::None
        }
    };
    match &*i.opcode {
        "ld" | "ldu" => access_if(reads && !elsewhere),
        "st" if !elsewhere && (has("async") || has("bulk")) => unreadable_if(writes),
        "st" => access_if(writes && !elsewhere),
        "atom" | "red" if !elsewhere && has("async") => Effect::Unreadable,
        "atom" | "red" => access_if(!elsewhere),
        "discard" => access_if(writes),
        // Touches nothing, but who says how many registers a thread has leaves no room for a check: an assembler then
        // refuses the whole module.
        "setmaxnreg" => Effect::Unreadable,
        "cp" => copy_effect(i, what),
        "multimem" | "sured" => Effect::Unreadable,
        "tex" | "tld4" | "suld" => unreadable_if(reads),
        "sust" => unreadable_if(writes),
        // One form copies from shared to global memory.
        "tensormap" => unreadable_if(writes && (has("cp_fenceproxy") || !elsewhere)),
        "wmma" if has("load") => unreadable_if(reads && !elsewhere),
        "wmma" if has("store") => unreadable_if(writes && !elsewhere),
        opcode if HARMLESS.contains(&opcode) => Effect::None,
        // What is not known and has an address may do anything there.
        _ => unreadable_if(
            i.operands
                .iter()
                .any(|o| matches!(o, Operand::Address { .. })),
        ),
    }
}

/// The same access, ordered behind the check before it: a load of constant memory ignores fences, so a
/// compiler may make it before the report. `None` if `i` is ordered as it is.
pub(super) fn ordered(i: &Instruction, what: Guard) -> Option<Instruction> {
    let unordered = match &*i.opcode {
        "ld" => i.modifiers.iter().any(|m| &**m == "nc"),
        opcode => opcode == "ldu",
    };
    (unordered && what == Guard::Accesses).then(|| {
        let mut load = i.clone();
        load.opcode = "ld".into();
        load.modifiers.retain(|m| &**m != "nc");
        load
    })
}

/// Copies name their destination's space first. Those to shared memory read global memory, the others
/// write it; sizes of tensor copies are not in the text.
fn copy_effect(i: &Instruction, what: Guard) -> Effect {
    let has = |m: &str| i.modifiers.iter().any(|x| &**x == m);
    if i.operands.len() < 2 || has("prefetch") {
        return Effect::None;
    }
    let space = |m: &&str| *m == "global" || m.starts_with("shared");
    let mut spaces = i.modifiers.iter().map(|m| &**m).filter(space);
    let (to, from) = (spaces.next(), spaces.next());
    let (to, from) = (to == Some("global"), from == Some("global"));
    let touched = match what {
        Guard::Writes => to.then_some(0),
        Guard::Reads => from.then_some(1),
        // None has both in global memory.
        Guard::Accesses => to.then_some(0).or(from.then_some(1)),
    };
    match touched {
        _ if has("reduce") && to => Effect::Unreadable,
        None => Effect::None,
        Some(_) if has("tensor") => Effect::Unreadable,
        Some(nth) => Effect::Access(nth),
    }
}

/// The statements that check what `i` accesses; `None` if there is nothing to check.
pub(super) fn check(
    function: &Function,
    i: &Instruction,
    what: Guard,
) -> Result<Option<Vec<Statement>>, PassError> {
    let unreadable = || PassError::Instruction {
        line: i.line,
        function: function.name.to_string(),
        instruction: i
            .modifiers
            .iter()
            .fold(i.opcode.to_string(), |text, m| format!("{text}.{m}")),
    };
    let nth = match effect(i, what) {
        Effect::None => return Ok(None),
        Effect::Unreadable => return Err(unreadable()),
        Effect::Access(nth) => nth,
    };
    let mut addresses = i.operands.iter().filter_map(|o| match o {
        Operand::Address { base, offset, .. } => Some((base, *offset)),
        _ => None,
    });
    let (base, offset) = addresses.nth(nth).ok_or_else(unreadable)?;
    let bytes = access_bytes(function, i).ok_or_else(unreadable)?;
    if bytes == "0" {
        return Ok(None);
    }
    let address = match base {
        None => format!("mov.u64 %fermata_a, {offset};"),
        Some(name) => {
            format!("mov.u64 %fermata_a, {name}; add.s64 %fermata_a, %fermata_a, {offset};")
        }
    };
    let guarded = i.guard.as_ref().map(|guard| {
        let not = if guard.negated { "!" } else { "" };
        format!("{not}{}", guard.register)
    });
    // A copy of no bytes accesses nothing, whatever its address.
    let (test, condition) = match guarded {
        _ if bytes.parse::<u32>().is_ok() => (String::new(), guarded),
        Some(guard) => (
            format!("setp.ne.and.u32 %fermata_z, {bytes}, 0, {guard};"),
            Some("%fermata_z".into()),
        ),
        None => (
            format!("setp.ne.u32 %fermata_z, {bytes}, 0;"),
            Some("%fermata_z".into()),
        ),
    };
    let test = match test.as_str() {
        "" => test,
        _ => format!(".reg .pred %fermata_z; {test}"),
    };
    let condition = condition.map_or_else(String::new, |it| format!("@{it} "));
    let global = i.modifiers.iter().any(|m| &**m == "global");
    let callee = if global { "" } else { "_generic" };
    Ok(Some(statements(&format!(
        "{{ .reg .b64 %fermata_a; {address} {test}
           {{ .param .b64 fermata_table; st.param.b64 [fermata_table], %fermata_t;
             .param .b64 fermata_address; st.param.b64 [fermata_address], %fermata_a;
             .param .b32 fermata_bytes; st.param.b32 [fermata_bytes], {bytes};
             {condition}call __fermata_check{callee}, (fermata_table, fermata_address, fermata_bytes); }} }}"
    ))))
}

/// Bytes an access covers: type times vector length, or the size that a copy or discard names.
fn access_bytes(function: &Function, i: &Instruction) -> Option<String> {
    let named = match &*i.opcode {
        "cp" => copied(function, i),
        "discard" => i.operands.get(1),
        _ => {
            let ty = i.modifiers.iter().rev().find_map(|m| Type::from_name(m))?;
            let vector = i.modifiers.iter().find_map(|m| match &**m {
                "v2" => Some(2),
                "v4" => Some(4),
                "v8" => Some(8),
                _ => None,
            });
            return Some((ty.bytes() * vector.unwrap_or(1)).to_string());
        }
    };
    match named? {
        Operand::Int(bytes) => u32::try_from(*bytes).ok().map(|bytes| bytes.to_string()),
        Operand::Name(register) => Some(register.to_string()),
        _ => None,
    }
}

/// The operand that says how many bytes a copy reads: `cp.async` may fill what it does not read with zeros. `None` for the
/// form in which a predicate has it read nothing.
fn copied<'i>(function: &Function, i: &'i Instruction) -> Option<&'i Operand> {
    let has = |m: &str| i.modifiers.iter().any(|x| &**x == m);
    let behind = match has("L2::cache_hint") {
        // The last operand is the policy.
        true => i.operands.split_last().map(|(_, others)| others),
        false => Some(i.operands.as_slice()),
    };
    match behind?.get(3) {
        _ if has("bulk") => i.operands.get(2),
        None => i.operands.get(2),
        Some(Operand::Name(name)) if is_predicate(function.body.as_deref()?, name) => None,
        source => source,
    }
}

fn is_predicate(body: &[Statement], register: &str) -> bool {
    body.iter().any(|statement| match statement {
        Statement::Variable(v) if v.ty == Type::Pred => {
            let number = register.strip_prefix(&*v.name);
            number.is_some_and(|it| match v.count {
                Some(_) => it.parse::<u32>().is_ok(),
                None => it.is_empty(),
            })
        }
        Statement::Block(inner) => is_predicate(inner, register),
        _ => false,
    })
}
