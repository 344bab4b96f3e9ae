//! Unit and property tests of the parser and printer.
use proptest::prelude::*;

use crate::ast::{Constant, Init, Item, Operand, Statement, Variable};
use crate::parse;

const SAMPLE: &str = r#"
.version 9.0
.target sm_75, debug
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;
.global .align 8 .u64 table[2] = {f, generic(data)+4};
.global .align 4 .b8 data[16] = {1, 0x02, -3};
.global .attribute(.managed) .align 4 .f32 m = 0f3F800000;
.const .b8 bytes[4] = {0xFF(data), 0xFF00(data)};
.visible .entry k(.param .u64 .ptr .global .align 16 k_p0, .param .align 8 .b8 k_p1[24])
.maxntid 128, 1, 1
.minnctapersm 2
{
	.reg .pred %p<3>; .reg .b32 %r<10>;
	.loc 1 2 3, function_name $L__info, inlined_at 1 2 3
$L_0:
	@!%p1 bra.uni $L_0;
	ld.global.v2.u32 {%r1, _}, [%rd1+-8];
	shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;
	mov.u32 %r1, %tid.x;
	{ .param .b32 p0;
	proto : .callprototype (.param .b32 _) _ (.param .b32 _);
	call (r0), %rd1, (p0), proto; }
	setp.lt.and.f32 %p1|%p2, %r1, 0f00000000, !%p2;
	ret;
}
.section .debug_info { .b8 1 { } $L__x: .b64 $L__x }
"#;

#[test]
fn text_older_than_address_sizes_has_64_bits() {
    let size = |head: &str| parse(head).unwrap().address_size;
    assert_eq!(size(".version 1.4\n.target sm_10, map_f64_to_f32"), 64);
    assert_eq!(size(".version 2.3\n.target sm_20"), 32);
    assert_eq!(size(".version 2.2\n.target sm_20\n.address_size 32"), 32);
}

#[test]
fn a_module_of_the_usual_shape() {
    let module = parse(SAMPLE).unwrap();
    assert_eq!(module.version, (9, 0));
    assert_eq!(module.items.len(), 6);
    let Item::Variable(table) = &module.items[1] else {
        panic!()
    };
    let Some(Init::List(list)) = &table.init else {
        panic!()
    };
    assert!(matches!(
        &list[1],
        Init::Value(Constant::Symbol {
            addend: 4,
            generic: true,
            ..
        })
    ));
    let Item::Function(k) = &module.items[5] else {
        panic!()
    };
    assert!(k.entry && k.params.len() == 2 && k.tuning.len() == 2);
    let body = k.body.as_ref().unwrap();
    let loads: Vec<_> = body
        .iter()
        .filter_map(|s| match s {
            Statement::Instruction(i) if &*i.opcode == "ld" => Some(i),
            _ => None,
        })
        .collect();
    assert!(matches!(
        &loads[0].operands[1],
        Operand::Address { offset: -8, .. }
    ));
    assert_eq!(
        &SAMPLE[loads[0].span.start as usize..loads[0].span.end as usize],
        "ld.global.v2.u32 {%r1, _}, [%rd1+-8];"
    );
}

#[test]
fn printing_and_parsing_again_gives_the_same_tree() {
    let first = parse(SAMPLE).unwrap();
    let text = first.to_string();
    let second = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(text, second.to_string());
    assert_eq!(first.items.len(), second.items.len());
}

/// The values of an initialiser's expressions, which are also read as an instruction's operands.
fn integers(list: &str) -> Vec<i64> {
    let text = format!(".version 8.0 .global .s64 x[] = {{{list}}}; .func f() {{ op {list}; }}");
    let module = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let Item::Variable(Variable {
        init: Some(Init::List(values)),
        ..
    }) = &module.items[0]
    else {
        panic!()
    };
    let value = |it: &Init| match it {
        Init::Value(Constant::Int(value)) => *value,
        other => panic!("{other:?}"),
    };
    let values: Vec<i64> = values.iter().map(value).collect();
    let Item::Function(f) = &module.items[1] else {
        panic!()
    };
    let Some(Statement::Instruction(i)) = f.body.as_ref().and_then(|body| body.first()) else {
        panic!()
    };
    let operands: Vec<_> = values.iter().map(|it| Operand::Int(*it)).collect();
    assert_eq!(i.operands, operands);
    values
}

#[test]
fn constant_expressions_are_evaluated() {
    let sums = integers("1<<4, 4*32, 2+1, 2+3*4, (2+3)*4, -4+8, 10-2-3, +7");
    assert_eq!(sums, [16, 128, 3, 14, 20, 4, 5, 7]);
    let parts = integers("7/2, -7/2, 7%4, 7 % 4, 1+7%0x4*2, -1>>1, 0xFFFFFFFFFFFFFFFF>>63");
    assert_eq!(parts, [3, -3, 3, 3, 7, -1, 1]);
    let bits = integers("~0, !5, !(1-1), 6&3, 6|3, 6^3, 1|2^3&4, 1<<2+1");
    assert_eq!(bits, [-1, 0, 1, 2, 7, 5, 3, 8]);
    let truths = integers("1<2, 2<=1, -1<0U, (.s64)0xFFFFFFFFFFFFFFFF<0, 1==1, 1!=1, 2&&0, 2||0");
    assert_eq!(truths, [1, 0, 0, 1, 1, 0, 0, 1]);
    let chosen = integers("1 ? 2 : 3, 0 ? 2 : 0 ? 3 : 4, 1.5 < 2.5 ? 7 : 8, 1 << 64, -1 >> 64");
    assert_eq!(chosen, [2, 4, 7, 0, -1]);
}

#[test]
fn constant_expressions_stand_in_addresses_and_lengths() {
    let text = ".version 8.0 .shared .b8 s[4*8]; .func f() { ld.u32 %r1, [%rd1+4*2-1]; \
        ld.u32 %r1, [4*4]; mov.u64 %rd1, s+2*8; call (r), g, (5, %r1); }";
    let module = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let text = module.to_string();
    for part in ["s[32]", "[%rd1+7]", "[16]", "s+16", "(5, %r1)"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn expressions_without_a_value_are_refused() {
    for list in [
        "1/0",
        "1%0",
        "1+0f3F800000",
        "~1.5",
        "1 ? 2",
        "(1",
        "f+f",
        "4-f",
    ] {
        let text = format!(".version 8.0 .global .s64 x[] = {{{list}}};");
        assert!(parse(&text).is_err(), "{list}");
    }
    let deep = format!(".version 8.0 .global .b32 x = {}1", "1+(".repeat(100_000));
    assert!(parse(&deep).is_err());
}

#[test]
fn errors_name_the_line() {
    let error = parse(".version 8.0\n.target sm_80\n.visible .entry k() {\n add.s32 %r1 %r2;\n}")
        .unwrap_err();
    assert_eq!(error.line, 4);
}

#[test]
fn deep_nesting_is_refused() {
    let text = format!(".version 8.0 .func f() {}", "{".repeat(100_000));
    assert!(parse(&text).unwrap_err().message.contains("nesting"));
    let text = format!(".version 8.0 .global .b32 x = {}", "-".repeat(100_000));
    assert!(parse(&text).is_err());
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,300}") {
        let _ = parse(&text);
    }

    #[test]
    fn damaged_modules_are_parsed_or_refused(cut in 0..SAMPLE.len(), insert in "[{}()\\[\\];,.:@!|+0-9a-z%-]{0,6}", skip in 0usize..40) {
        let end = (cut + skip).min(SAMPLE.len());
        if let Ok(module) = parse(&format!("{}{insert}{}", &SAMPLE[..cut], &SAMPLE[end..])) {
            let text = module.to_string();
            prop_assert!(parse(&text).is_ok(), "{}", text);
        }
    }
}
