//! Images of programs whose device memory the driver's own checkpoint has put into their host memory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use fermata_store::Store;
use fermata_store::image::{self, DeviceRecord, Draft, HostRecord, Image, Manifest, PROCESS_FILES};
use support::{content, quick_folder};

fn manifest(driver_processes: &[u32]) -> Manifest {
    Manifest {
        host: HostRecord {
            criu: "4.2.1".into(),
            ..HostRecord::default()
        },
        devices: vec![DeviceRecord::default()],
        driver_processes: driver_processes.to_vec(),
        ..Manifest::default()
    }
}

#[test]
fn device_memory_in_processes_is_a_version_that_older_readers_refuse() {
    let folder = quick_folder();
    let store = Store::open(&folder.path().join("store"), true).unwrap();
    let images = folder.path().join("images");
    let write = |name: &str, processes: &[u32]| {
        let draft = Draft::create(&store, &images, name).unwrap();
        for path in PROCESS_FILES {
            std::fs::write(draft.path().join(path), "x").unwrap();
        }
        std::fs::write(draft.host().join("pages-1.img"), content(7, 5000)).unwrap();
        draft.commit(manifest(processes))
    };
    let image = write("by-driver", &[17, 18]).unwrap();
    assert_eq!(image.manifest().schema_version, 3);
    let in_store = Manifest {
        totals: image::SessionTotals {
            chunks: 1,
            ..Default::default()
        },
        ..manifest(&[17])
    };
    let draft = Draft::create(&store, &images, "in-store").unwrap();
    for path in PROCESS_FILES {
        std::fs::write(draft.path().join(path), "x").unwrap();
    }
    // Without its table it is none.
    assert!(draft.commit(in_store).is_err());
    let again = Image::open(image.dir()).unwrap();
    assert_eq!(again.manifest().driver_processes, [17, 18]);
    assert!(again.chunk_table().unwrap().records().is_empty());
    assert!(image::verify(&again, &store, &|_| ()).unwrap().is_sound());
    // Others with devices have objects and chunks.
    assert!(write("without", &[]).is_err());

    let pages = image.host().join("pages-1.img");
    let mut bytes = std::fs::read(&pages).unwrap();
    bytes[4000] ^= 1;
    std::fs::write(&pages, bytes).unwrap();
    let report = image::verify(&again, &store, &|_| ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    image::rm(image.dir(), Some(&store)).unwrap();
    assert!(!image.dir().exists());
}
