//! Files of an image and its store, flipped, cut, swapped with those of a sibling, deleted, replaced by a link, a FIFO or
//! a folder, and crafted manifests: `verify` finds them, and a restore gives the right digest or refuses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use serde_json::{Value, json};

use super::{Draw, Kind, Shown};
use crate::case::Mode;
use crate::output::Output;
use crate::scene::{SHORT, Scene};

/// Documented statuses of a refusal: no such image or store, damaged, of a newer release.
const REFUSALS: [i32; 3] = [10, 12, 13];
/// A neighbour is looked after once in so many cases.
const LOOK: u64 = 16;
const NEIGHBOUR: &str = "neighbour";

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Flip,
    Cut,
    Swap,
    Delete,
    Link,
    Fifo,
    Folder,
    Craft,
}

const HARMS: [(Harm, &str); 8] = [
    (Harm::Flip, "flipped"),
    (Harm::Cut, "cut"),
    (Harm::Swap, "swapped"),
    (Harm::Delete, "deleted"),
    (Harm::Link, "a link"),
    (Harm::Fifo, "a FIFO"),
    (Harm::Folder, "a folder"),
    (Harm::Craft, "crafted manifest"),
];

/// Two images of one program, and a program beside that nothing may happen to.
pub struct Images {
    scene: Scene,
    digest: String,
    /// Where whole files are while something else is in their place.
    aside: PathBuf,
}

impl Images {
    /// Sets the stage.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let digest = scene.straight("heat2d", SHORT)?.digest;
        scene.start_slow(NEIGHBOUR)?;
        scene.start_held("source")?;
        let fermata = scene.fermata();
        fermata.checkpoint("source", "one", Mode::Stop)?;
        scene.let_go_to(300)?;
        scene.wait_steps("source", 15)?;
        fermata.checkpoint("source", "two", Mode::Stop)?;
        fermata.kill("source")?;
        scene.let_go()?;
        let aside = scene.sandbox().work().join("aside");
        Ok(Self {
            scene,
            digest: digest.context("no digest")?,
            aside,
        })
    }

    /// Files of image `one` and of the store.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let two = self.scene.fermata().image("two");
        let mut files = self.scene.image_files()?;
        files.retain(|it| !it.starts_with(&two));
        Ok(files)
    }

    /// The same file of the other image; of the store, another file with the same ending.
    fn sibling(&self, file: &Path, draw: &mut Draw) -> Result<Option<PathBuf>> {
        let fermata = self.scene.fermata();
        if let Ok(name) = file.strip_prefix(fermata.image("one")) {
            let other = fermata.image("two").join(name);
            return Ok(other.is_file().then_some(other));
        }
        let mut alike = self.files()?;
        alike.retain(|it| {
            it != file && it.parent() == file.parent() && it.extension() == file.extension()
        });
        Ok((!alike.is_empty()).then(|| draw.pick(&alike).clone()))
    }

    /// Puts something else in the place of `file`, whose content is in `aside`; false if nothing has changed.
    fn harm(&self, file: &Path, harm: Harm, draw: &mut Draw) -> Result<bool> {
        let mut bytes = fs::read(&self.aside)?;
        let length = bytes.len() as u64;
        match harm {
            Harm::Delete => return Ok(true),
            Harm::Link => symlink(&self.aside, file)?,
            Harm::Fifo => mknodat(CWD, file, FileType::Fifo, FileMode::RUSR, 0)?,
            Harm::Folder => fs::create_dir(file)?,
            Harm::Swap => {
                let Some(other) = self.sibling(file, draw)? else {
                    return Ok(false);
                };
                let other = fs::read(other)?;
                fs::write(file, &other)?;
                return Ok(other != bytes);
            }
            Harm::Cut => {
                if length == 0 {
                    return Ok(false);
                }
                bytes.truncate(draw.below(length) as usize);
                fs::write(file, bytes)?;
            }
            Harm::Flip => {
                if length == 0 {
                    return Ok(false);
                }
                bytes[draw.below(length) as usize] ^= 1 << draw.below(8);
                fs::write(file, bytes)?;
            }
            Harm::Craft => fs::write(file, craft(&bytes, draw)?)?,
        }
        Ok(true)
    }

    /// What a restore comes to, and whether `verify` says the same; it finds something, unless it may be that the image is
    /// sound.
    fn judge(&self, number: u64, may_be_sound: bool, draw: &mut Draw) -> Result<String> {
        let fermata = self.scene.fermata();
        let verify = fermata.call(&["images", "verify", "one"])?;
        let sound = verify.status == 0;
        ensure!(
            REFUSALS.contains(&verify.status) || sound && may_be_sound,
            "`verify`: status {}, {}",
            verify.status,
            verify.stderr
        );
        let session = format!("case-{number}");
        let mut words = vec!["restore", "one", "--detach", "--name", &session];
        if draw.below(2) == 0 {
            words.push("--eager");
        }
        let restore = fermata.call(&words)?;
        if restore.status != 0 {
            ensure!(
                REFUSALS.contains(&restore.status) && !restore.stderr.trim().is_empty() && !sound,
                "restore: status {}, {}",
                restore.status,
                restore.stderr
            );
            ensure!(fermata.find(&session)?.is_none(), "a session is left");
            return Ok(format!("refused with status {}", restore.status));
        }
        let ended = fermata.call(&["wait", &session])?;
        let printed = Output::parse(&fermata.log(&session)?)?.digest;
        match (ended.status, printed) {
            (0, Some(digest)) if digest == self.digest => Ok("right digest".into()),
            (0, digest) => bail!("digest {digest:?} instead of {}", self.digest),
            (_, None) if ended.stderr.contains("has ended: ") && !sound => {
                Ok("refused behind".into())
            }
            (status, _) => bail!("the program ended with status {status}: {}", ended.stderr),
        }
    }

    fn look_after_neighbour(&self) -> Result<()> {
        self.scene.check_goes_on(NEIGHBOUR)?;
        let sound = self.scene.fermata().call(&["images", "verify", "--all"])?;
        sound.success("images after a case").map(drop)
    }
}

impl Kind for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown> {
        let (harm, told) = *draw.pick(&HARMS);
        let manifest = self.scene.fermata().image("one").join("manifest.json");
        let file = match harm {
            Harm::Craft => manifest.clone(),
            _ => draw.pick(&self.files()?).clone(),
        };
        let checksum = manifest.with_extension("b3");
        let kept = fs::read(&checksum)?;
        fs::rename(&file, &self.aside)?;
        let changed = self.harm(&file, harm, draw)?;
        if harm == Harm::Craft {
            let hash = blake3::hash(&fs::read(&file)?).to_hex();
            fs::write(&checksum, format!("{hash}\n"))?;
        }
        // The store holds what the image does not need, too; and a profile is advice.
        let store = self.scene.sandbox().images().join(".store");
        let harmless = !changed || file.starts_with(store) || file.ends_with("profile");
        let came = self.judge(number, harmless, draw);
        remove(&file)?;
        fs::rename(&self.aside, &file)?;
        if harm == Harm::Craft {
            fs::write(&checksum, kept)?;
        }
        let what = format!("`{}` {told}", file.display());
        let came = came.with_context(|| what)?;
        if number.is_multiple_of(LOOK) {
            self.look_after_neighbour()?;
        }
        Ok(Shown {
            harm: told.into(),
            came,
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.look_after_neighbour()?;
        for (number, image) in ["one", "two"].iter().enumerate() {
            let name = format!("last-{number}");
            self.scene.try_restore(image, &name)?.success("restore")?;
            let ended = self.scene.fermata().call(&["wait", &name])?;
            let printed = Output::parse(&self.scene.fermata().log(&name)?)?.digest;
            ensure!(
                ended.status == 0 && printed.as_ref() == Some(&self.digest),
                "image `{image}` gives {printed:?} instead of {}",
                self.digest
            );
        }
        self.scene.fermata().kill(NEIGHBOUR)?;
        self.scene.close()
    }
}

/// A manifest that is well formed and wrong.
fn craft(bytes: &[u8], draw: &mut Draw) -> Result<Vec<u8>> {
    let mut json: Value = serde_json::from_slice(bytes)?;
    let way = draw.below(8);
    if way == 0 {
        json["schema_version"] = json!(6 + draw.below(1000));
        return Ok(serde_json::to_vec(&json)?);
    }
    let files = json["files"].as_array_mut().context("files")?;
    let at = draw.below(files.len() as u64) as usize;
    let digest = blake3::hash(&draw.below(u64::MAX).to_le_bytes()).to_hex();
    match way {
        1 => files.clear(),
        2 => drop(files.remove(at)),
        3 => files.push(files[at].clone()),
        4 => files[at]["blake3"] = json!(digest.as_str()),
        5 => files[at]["length"] = json!(draw.below(1 << 40)),
        6 => files[at]["path"] = json!("../two/state"),
        _ => {
            let other = files[(at + 1) % files.len()]["path"].clone();
            files[at]["path"] = other;
        }
    }
    Ok(serde_json::to_vec(&json)?)
}

fn remove(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(meta) if meta.is_dir() => Ok(fs::remove_dir(path)?),
        Ok(_) => Ok(fs::remove_file(path)?),
    }
}
