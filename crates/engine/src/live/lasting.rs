//! Values that captures keep with a session from one checkpoint to the next, one of each type: predictions, instrumented
//! kernels. This file must not name those types, because their modules depend on this one.

use std::any::{Any, TypeId};
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub(crate) struct Lasting(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Lasting {
    /// Takes the value of this type, if there is one.
    pub fn take<T: Any>(&mut self) -> Option<Box<T>> {
        let found = self.0.remove(&TypeId::of::<T>())?;
        found.downcast().ok()
    }

    /// Keeps a value for the next checkpoint.
    pub fn put<T: Any + Send + Sync>(&mut self, kept: Box<T>) {
        self.0.insert(TypeId::of::<T>(), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::Lasting;

    #[test]
    fn each_type_gets_back_what_it_has_put() {
        let mut lasting = Lasting::default();
        assert!(lasting.take::<u32>().is_none());
        lasting.put(Box::new(7u32));
        lasting.put(Box::new("kernels".to_owned()));
        assert_eq!(lasting.take::<u32>().as_deref(), Some(&7));
        assert!(lasting.take::<u32>().is_none(), "it was taken");
        assert_eq!(
            lasting.take::<String>().as_deref().map(String::as_str),
            Some("kernels")
        );
    }
}
