//! Translates launch attributes for the driver: the program's handles become the driver's.

use fermata_abi::op::Launch;
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, LaunchAttribute};
use fermata_graph::KernelNode;

use crate::Live;

impl Live {
    /// The attributes of a launch.
    ///
    /// # Errors
    /// An event does not exist.
    pub fn launch_attributes(
        &self,
        launch: &Launch<'_>,
    ) -> Result<Vec<LaunchAttribute>, DriverError> {
        let mut attributes = Vec::new();
        for given in &launch.attributes {
            let mut attribute = LaunchAttribute::new(given.id, given.value);
            if let Some(event) = given.event() {
                let raw = self.event(event)?.address();
                attribute.value[..8].copy_from_slice(&raw.to_ne_bytes());
            }
            attributes.push(attribute);
        }
        if launch.cooperative {
            let yes = 1i32.to_ne_bytes();
            attributes.push(LaunchAttribute::new(
                cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                &yes,
            ));
        }
        Ok(attributes)
    }
}

/// The attributes of a kernel node, none of which names an object.
pub(super) fn of_node(node: &KernelNode) -> Vec<LaunchAttribute> {
    let given = node.attributes.iter();
    given
        .map(|it| LaunchAttribute::new(it.id, &it.value))
        .collect()
}
