//! `fermata images` on real images.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use fermata_store::image::{BufferId, ChunkTableWriter, Draft, Manifest};
use fermata_store::{ChunkId, Store};
use support::Place;

fn write_image(place: &Place, name: &str, content: &[&[u8]]) {
    let store = Store::open(&place.images().join(".store"), true).unwrap();
    let draft = Draft::create(&store, &place.images(), name).unwrap();
    let (writer, mut table) = (store.begin().unwrap(), ChunkTableWriter::new());
    for (number, bytes) in content.iter().enumerate() {
        let id = ChunkId::of(bytes);
        writer.put(&id, bytes).unwrap();
        table
            .push(BufferId(number as u64), 0, bytes.len() as u32, id)
            .unwrap();
    }
    writer.finish().unwrap();
    table.write(&draft.path().join("chunks")).unwrap();
    std::fs::write(draft.path().join("state"), "objects").unwrap();
    let mut manifest = Manifest::default();
    manifest.program.argv = vec!["./heat2d".into()];
    draft.commit(manifest).unwrap();
}

#[test]
fn images_are_listed_and_inspected() {
    let place = Place::new();
    write_image(&place, "heat-1", &[b"alpha", b"beta"]);
    let text = place.call(&["images", "ls"]).stdout;
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains("heat-1") && text.contains("./heat2d"),
        "{text}"
    );
    let text = place.call(&["images", "inspect", "heat-1"]).stdout;
    assert!(text.contains("2 in 2 chunks, 9 B"), "{text}");
    let json = place
        .call(&["images", "inspect", "heat-1", "--json"])
        .stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["manifest"]["program"]["argv"][0], "./heat2d");
}

#[test]
fn damage_is_status_12_and_names_the_file() {
    let place = Place::new();
    write_image(&place, "heat-1", &[b"alpha"]);
    let sound = place.call(&["images", "verify", "heat-1"]);
    assert_eq!(sound.status, 0, "{}", sound.stderr);
    assert!(sound.stdout.starts_with("heat-1: sound"));
    std::fs::write(place.images().join("heat-1/state"), "objectZ").unwrap();
    let done = place.call(&["images", "verify", "heat-1"]);
    assert_eq!(done.status, 12);
    assert!(
        done.stderr.contains("heat-1/state`: its hash"),
        "{}",
        done.stderr
    );
    assert_eq!(place.call(&["images", "verify", "--all"]).status, 12);
    for file in ["manifest.json", "manifest.b3", "state", "chunks"] {
        let file = place.images().join("heat-1").join(file);
        let whole = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let done = place.call(&["images", "verify", "heat-1"]);
        assert_eq!(done.status, 12, "{}: {}", file.display(), done.stderr);
        std::fs::write(&file, whole).unwrap();
    }
}

#[test]
fn a_lost_chunk_names_its_buffer() {
    let place = Place::new();
    write_image(&place, "heat-1", &[b"alpha"]);
    let packs = place.images().join(".store/packs");
    let pack = std::fs::read_dir(packs)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let done = place.call(&["images", "verify", "heat-1"]);
    assert_eq!(done.status, 12);
    assert!(
        done.stderr.contains("lost: buffer 0 from 0 to 5"),
        "{}",
        done.stderr
    );
    let json = place.call(&["images", "verify", "heat-1", "--json"]);
    assert_eq!(json.status, 12);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["images"][0]["damage"][0]["buffers"][0]["length"], 5);
}

#[test]
fn a_newer_image_is_status_13() {
    let place = Place::new();
    write_image(&place, "heat-1", &[]);
    let path = place.images().join("heat-1/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let newer = fermata_store::image::SCHEMA_VERSION + 1;
    let version = format!("\"schema_version\": {newer}");
    let text = text.replace("\"schema_version\": 1", &version);
    std::fs::write(
        path.with_file_name("manifest.b3"),
        format!("{}\n", blake3(&text)),
    )
    .unwrap();
    std::fs::write(&path, text).unwrap();
    let done = place.call(&["images", "inspect", "heat-1"]);
    assert_eq!(done.status, 13);
    let named = format!("format version {newer}");
    assert!(done.stderr.contains(&named), "{}", done.stderr);
}

fn blake3(text: &str) -> String {
    ChunkId::of(text.as_bytes()).to_string()
}

#[test]
fn removed_images_give_their_space_back() {
    let place = Place::new();
    write_image(&place, "heat-1", &[b"alpha", b"beta", b"delta"]);
    write_image(&place, "heat-2", &[b"alpha", b"gamma"]);
    let text = place.call(&["images", "diff", "heat-1", "heat-2"]).stdout;
    assert!(text.contains("buffer 1  changed"), "{text}");
    assert!(
        text.ends_with("2 of 3 chunks differ, 10 B of 15 B\n"),
        "{text}"
    );
    assert_eq!(place.call(&["images", "rm", "heat-1"]).status, 0);
    let dry = place.call(&["images", "gc", "--dry-run"]).stdout;
    assert!(dry.starts_with("would remove 2 chunks"), "{dry}");
    let done = place.call(&["images", "gc"]);
    assert!(
        done.stdout.starts_with("removed 2 chunks"),
        "{}{}",
        done.stdout,
        done.stderr
    );
    assert_eq!(place.call(&["images", "verify", "heat-2"]).status, 0);
    let missing = place.call(&["images", "rm", "heat-2", "heat-1"]);
    assert_eq!(missing.status, 3, "{}", missing.stderr);
}

#[test]
fn a_collection_waits_for_no_checkpoint() {
    let place = Place::new();
    write_image(&place, "heat-1", &[]);
    let store = Store::open(&place.images().join(".store"), false).unwrap();
    let _draft = Draft::create(&store, &place.images(), "heat-2").unwrap();
    let done = place.call(&["images", "gc"]);
    assert_eq!(done.status, 11, "{}", done.stderr);
    assert!(done.stderr.contains("is running"), "{}", done.stderr);
}
