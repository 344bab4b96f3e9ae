//! Binds texture and surface references of modules again, through which kernels use them without a parameter.

use fermata_state::Session;

use super::textures::lives;
use crate::{EngineError, Live};

/// Binds the references whose arrays and memory exist. A reference to memory that the program has freed stays unbound,
/// because no kernel may read it.
pub(super) fn rebind(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (key, texture) in &session.references {
        let resource = &texture.resource;
        let gone = resource
            .memory()
            .is_some_and(|(address, _)| !lives(session, address));
        let Some(texels) = live.texels(resource).ok().filter(|_| !gone) else {
            continue;
        };
        let operation = format!("bind reference `{}`", key.name);
        let context = session.modules.get(key.module)?.context;
        live.enter(context)
            .map_err(EngineError::driver(&*operation))?;
        let module = live.modules.get(&key.module).copied();
        let module = module
            .ok_or_else(|| EngineError::Internal(format!("cannot {operation}: no module")))?;
        live.driver
            .bind_reference(module, &key.name, texture, texels)
            .map_err(EngineError::driver(operation))?;
    }
    Ok(())
}
