//! What the tests store objects in: an S3-compatible server, `s3s-fs`, which checks signatures and keeps each bucket in a
//! folder.
//!
//!     object_store PORT KEY SECRET FOLDER
//!
//! It listens on 127.0.0.1 and ends when it is killed.

use std::error::Error;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, key, secret, folder] = arguments.as_slice() else {
        return Err("usage: object_store PORT KEY SECRET FOLDER".into());
    };
    let mut builder =
        S3ServiceBuilder::new(FileSystem::new(folder).map_err(|error| format!("{error:?}"))?);
    builder.set_auth(SimpleAuth::from_single(key.as_str(), secret.as_str()));
    let service = builder.build();
    let address = ("127.0.0.1", port.parse::<u16>()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let service = service.clone();
            tokio::spawn(async move {
                // A client that goes away in the middle, as killed ones do, is no failure of the server.
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    })
}
