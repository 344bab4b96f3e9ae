//! PTX text and fat binaries, which come from programs.

use fermata_ptx::fatbin::{container_len, entries};

/// PTX text: what is parsed and printed must parse again, to the same text.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(module) = fermata_ptx::parse(text) else {
        return;
    };
    let printed = module.to_string();
    match fermata_ptx::parse(&printed) {
        Ok(again) => assert_eq!(printed, again.to_string(), "printing is stable"),
        Err(e) => panic!("printed text does not parse: {e}\n{printed}"),
    }
}

/// Texts that compilers wrote.
pub fn text_seeds() -> Vec<Vec<u8>> {
    let texts = [
        include_str!("../../../kernels/blake3.ptx"),
        include_str!("../../../kernels/change.ptx"),
        SMALL,
    ];
    texts.map(|t| t.as_bytes().to_vec()).into()
}

const SMALL: &str = "\
.version 8.0
.target sm_75
.address_size 64
.global .align 4 .u32 total;
.visible .entry add(.param .u64 add_0, .param .u32 add_1)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [add_0];
	ld.param.u32 %r1, [add_1];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p1, %r2, %r1;
	@%p1 bra $done;
	cvta.to.global.u64 %rd2, %rd1;
	atom.global.add.u32 %r3, [%rd2+4], 1;
$done:
	ret;
}
";

/// A fat binary container and the payloads in it.
pub fn fatbin(data: &[u8]) {
    if let Some(header) = data.first_chunk() {
        let _ = container_len(header);
    }
    let Ok(entries) = entries(data) else { return };
    for entry in entries.iter().take(16) {
        let _ = entry.contents();
    }
}

/// A container with an entry as it is, and with one that claims to be packed.
pub fn fatbin_seeds() -> Vec<Vec<u8>> {
    let entry = |flags: u64, payload: &[u8]| {
        let mut e = vec![0u8; 0x40];
        e[0] = 1;
        e[4] = 0x40;
        e[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        e[0x10] = payload.len() as u8;
        e[0x1c] = 75;
        e[0x28..0x30].copy_from_slice(&flags.to_le_bytes());
        e[0x38..0x40].copy_from_slice(&16u64.to_le_bytes());
        e.extend(payload);
        e
    };
    let container = |body: Vec<u8>| {
        let mut c = 0xBA55_ED50u32.to_le_bytes().to_vec();
        c.extend([1, 0, 16, 0]);
        c.extend((body.len() as u64).to_le_bytes());
        c.extend(body);
        c
    };
    let plain = entry(0, b"//ptx\0\0\0");
    let lz4 = entry(0x2000, &[0x1f, b'a', 1, 0, 0, 0, 0, 0]);
    let zstd = entry(0x8000, &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 1, 9, 0, 0, b'x']);
    vec![
        container(plain.clone()),
        container([plain, lz4, zstd].concat()),
    ]
}
