//! The PTX texts of the modules whose kernels are being instrumented.

use std::collections::HashMap;
use std::sync::Arc;

use fermata_ptx::ast::Module;
use fermata_state::ImageId;

use crate::text::text_of;

/// Texts that have been read while instrumented kernels are made, by image and architecture; or why there is none.
#[derive(Default)]
pub(super) struct Texts(HashMap<(ImageId, Option<u32>), Result<Arc<Module>, String>>);

impl Texts {
    pub fn get(
        &mut self,
        image: Option<&[u8]>,
        id: ImageId,
        version: Option<u32>,
    ) -> Result<Arc<Module>, String> {
        let read = || read(image.unwrap_or_default(), version).map(Arc::new);
        self.0.entry((id, version)).or_insert_with(read).clone()
    }
}

fn read(image: &[u8], version: Option<u32>) -> Result<Module, String> {
    let (text, certain) = text_of(image, version).ok_or("its module has machine code only")?;
    if !certain && text.sm == version {
        let sm = version.unwrap_or_default();
        return Err(format!(
            "its module may run code for another variant of architecture {sm} than its text is for"
        ));
    }
    if !certain {
        return Err(format!(
            "its module has text for architecture {} and runs code for {}",
            text.sm.unwrap_or_default(),
            version.unwrap_or_default()
        ));
    }
    fermata_ptx::parse(&text.source).map_err(|error| format!("its text cannot be read: {error}"))
}
