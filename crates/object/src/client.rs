//! Signed requests to one bucket, repeated until they succeed or their time is over.
//!
//! The library that signs knows no network, and the one that talks HTTP knows no S3
//! ([decision](../../../docs/decisions/016-object-storage-without-a-runtime.md)). Addresses carry the
//! signature, so no message ever shows one.

use std::time::{Duration, Instant};

use rusty_s3::actions::{CreateMultipartUpload, ListObjectsV2};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};
use url::Url;

use crate::{Cause, ObjectConfig, ObjectError, Result};

/// For how long a signature holds.
const SIGNED: Duration = Duration::from_secs(900);
/// A connection that gives no sign of life for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);
/// Pauses between repetitions: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Longest answer that is read whole, in bytes.
const LONGEST: u64 = 1 << 30;

/// A bucket and the way in.
pub struct Client {
    bucket: Bucket,
    credentials: Credentials,
    agent: Agent,
    deadline: Duration,
}

/// What the service has answered.
struct Answer {
    status: u16,
    etag: Option<String>,
    body: Vec<u8>,
}

enum Verb<'a> {
    Get(Option<String>),
    Put(&'a [u8]),
    Post(&'a [u8]),
    Delete,
}

impl Client {
    /// For the bucket of a configuration.
    pub fn new(config: &ObjectConfig) -> Result<Self> {
        let wrong = ObjectError::Config;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let region = config
            .region
            .clone()
            .or_else(|| variable("AWS_REGION"))
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .unwrap_or_else(|| "us-east-1".into());
        let given = config
            .endpoint
            .clone()
            .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
            .or_else(|| variable("AWS_ENDPOINT_URL"));
        let path = config.path_style.unwrap_or(given.is_some());
        let endpoint = given.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let url: Url = endpoint
            .parse()
            .map_err(|e| wrong(format!("the endpoint is `{endpoint}`: {e}")))?;
        let style = match path {
            true => UrlStyle::Path,
            false => UrlStyle::VirtualHost,
        };
        let bucket = Bucket::new(url, style, config.bucket.clone(), region).map_err(|_| {
            let name = &config.bucket;
            wrong(format!("bucket `{name}` at `{endpoint}` makes no address"))
        })?;
        let credentials = match &config.keys {
            Some((key, secret)) => Credentials::new(key, &secret.0),
            None => Credentials::from_env().ok_or(ObjectError::NoKeys)?,
        };
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .build();
        let deadline = Duration::from_secs_f64(config.deadline);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls)
            .timeout_connect(Some(SILENCE.min(deadline)))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .build()
            .into();
        Ok(Self {
            bucket,
            credentials,
            agent,
            deadline,
        })
    }

    /// Longest time for one request with all its repetitions.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Names of the objects whose keys begin with `prefix`, without it; asked for so long.
    pub fn list(&self, prefix: &str, patience: Duration) -> Result<Vec<String>> {
        const OP: &str = "list the objects under";
        let mut names = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let sign = || {
                let mut list = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
                list.with_prefix(prefix);
                if let Some(token) = &token {
                    list.with_continuation_token(token.clone());
                }
                list.sign(SIGNED)
            };
            let answer = self.ask_within(patience, OP, prefix, sign, &Verb::Get(None))?;
            let text = String::from_utf8_lossy(&answer.body);
            let page = ListObjectsV2::parse_response(&text)
                .map_err(|_| self.strange(OP, prefix, "its list cannot be understood"))?;
            let keys = page.contents.iter();
            names.extend(keys.filter_map(|o| Some(o.key.strip_prefix(prefix)?.to_owned())));
            match page.next_continuation_token {
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                _ => return Ok(names),
            }
        }
    }

    /// The bytes of an object from `start` on, `bytes` of them, or all.
    pub fn get(&self, key: &str, range: Option<(u64, u64)>) -> Result<Vec<u8>> {
        const OP: &str = "read";
        let sign = || {
            self.bucket
                .get_object(Some(&self.credentials), key)
                .sign(SIGNED)
        };
        let header = range.map(|(start, bytes)| format!("bytes={start}-{}", start + bytes - 1));
        let body = self.ask(OP, key, sign, &Verb::Get(header))?.body;
        match range {
            Some((_, bytes)) if body.len() as u64 != bytes => {
                Err(self.strange(OP, key, "it has another length than was asked for"))
            }
            _ => Ok(body),
        }
    }

    /// Writes an object of a few MiB.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let sign = || {
            self.bucket
                .put_object(Some(&self.credentials), key)
                .sign(SIGNED)
        };
        self.ask("write", key, sign, &Verb::Put(bytes)).map(drop)
    }

    /// Removes an object; one that is not there is fine.
    pub fn delete(&self, key: &str) -> Result<()> {
        let sign = || {
            self.bucket
                .delete_object(Some(&self.credentials), key)
                .sign(SIGNED)
        };
        self.ask("remove", key, sign, &Verb::Delete).map(drop)
    }

    /// Begins an object in parts; its number at the service.
    pub fn begin_parts(&self, key: &str) -> Result<String> {
        const OP: &str = "begin to write";
        let sign = || {
            let begin = self
                .bucket
                .create_multipart_upload(Some(&self.credentials), key);
            begin.sign(SIGNED)
        };
        let answer = self.ask(OP, key, sign, &Verb::Post(&[]))?;
        let text = String::from_utf8_lossy(&answer.body);
        let begun = CreateMultipartUpload::parse_response(&text)
            .map_err(|_| self.strange(OP, key, "its answer cannot be understood"))?;
        Ok(begun.upload_id().to_owned())
    }

    /// Writes a part, numbered from 1; its tag.
    pub fn part(&self, key: &str, upload: &str, number: u16, bytes: &[u8]) -> Result<String> {
        const OP: &str = "write a part of";
        let sign = || {
            let part = self
                .bucket
                .upload_part(Some(&self.credentials), key, number, upload);
            part.sign(SIGNED)
        };
        let answer = self.ask(OP, key, sign, &Verb::Put(bytes))?;
        answer
            .etag
            .ok_or_else(|| self.strange(OP, key, "the answer has no ETag"))
    }

    /// Completes an object whose parts have these tags.
    pub fn end_parts(&self, key: &str, upload: &str, tags: &[String]) -> Result<()> {
        const OP: &str = "complete";
        let end = || {
            let tags = tags.iter().map(String::as_str);
            self.bucket
                .complete_multipart_upload(Some(&self.credentials), key, upload, tags)
        };
        let body = end().body();
        let sign = || end().sign(SIGNED);
        let answer = self.ask(OP, key, sign, &Verb::Post(body.as_bytes()))?;
        // The service may begin with a success and then think otherwise.
        let text = String::from_utf8_lossy(&answer.body);
        match inside(&text, "Code") {
            Some(code) => Err(self.strange(OP, key, &format!("the service says {code}"))),
            None => Ok(()),
        }
    }

    /// Gives up an object in parts, as well as that can be done.
    pub fn abort_parts(&self, key: &str, upload: &str) {
        let abort = self
            .bucket
            .abort_multipart_upload(Some(&self.credentials), key, upload);
        let url = abort.sign(SIGNED);
        // The service keeps the parts then; it is told to forget such parts after a while, or not.
        let _ = self.once(&url, &Verb::Delete, SILENCE);
    }

    fn ask(
        &self,
        op: &'static str,
        key: &str,
        sign: impl Fn() -> Url,
        verb: &Verb<'_>,
    ) -> Result<Answer> {
        self.ask_within(self.deadline, op, key, sign, verb)
    }

    fn ask_within(
        &self,
        patience: Duration,
        op: &'static str,
        key: &str,
        sign: impl Fn() -> Url,
        verb: &Verb<'_>,
    ) -> Result<Answer> {
        let until = Instant::now() + patience;
        let mut pause = PAUSES.0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let failure = match self.once(&sign(), verb, left) {
                Ok(answer) if (200..300).contains(&answer.status) => return Ok(answer),
                Ok(answer) => Failure::Refused(answer),
                Err(e) => Failure::Unreached(e),
            };
            if !failure.may_pass() || Instant::now() + pause >= until {
                return Err(failure.error(op, self.bucket.name(), key, patience));
            }
            // A server that is busy or away tells nobody when it is not; see the module.
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn once(&self, url: &Url, verb: &Verb<'_>, left: Duration) -> Result<Answer, ureq::Error> {
        let left = Some(left.max(Duration::from_millis(1)));
        let url = url.as_str();
        let mut response = match verb {
            Verb::Get(range) => {
                let request = self.agent.get(url).config().timeout_global(left).build();
                match range {
                    Some(range) => request.header("range", range).call(),
                    None => request.call(),
                }
            }
            Verb::Put(body) => {
                let request = self.agent.put(url).config().timeout_global(left).build();
                request.send(*body)
            }
            Verb::Post(body) => {
                let request = self.agent.post(url).config().timeout_global(left).build();
                request.send(*body)
            }
            Verb::Delete => {
                let request = self.agent.delete(url).config().timeout_global(left);
                request.build().call()
            }
        }?;
        let etag = response.headers().get("etag");
        Ok(Answer {
            status: response.status().as_u16(),
            etag: etag.and_then(|tag| Some(tag.to_str().ok()?.to_owned())),
            body: response
                .body_mut()
                .with_config()
                .limit(LONGEST)
                .read_to_vec()?,
        })
    }

    fn strange(&self, op: &'static str, key: &str, what: &str) -> ObjectError {
        ObjectError::Service {
            op,
            bucket: self.bucket.name().into(),
            key: key.into(),
            what: what.into(),
            cause: Cause::Strange,
        }
    }
}

/// Why a request came to nothing.
enum Failure {
    Refused(Answer),
    Unreached(ureq::Error),
}

impl Failure {
    /// Whether trying again can help.
    fn may_pass(&self) -> bool {
        match self {
            // 507: full, and it will not be otherwise in a moment.
            Self::Refused(answer) => matches!(answer.status, 408 | 429 | 500..=506 | 508..),
            Self::Unreached(e) => !untrusted(e),
        }
    }

    fn error(self, op: &'static str, bucket: &str, key: &str, deadline: Duration) -> ObjectError {
        let seconds = deadline.as_secs_f64();
        let (what, cause) = match self {
            Self::Refused(answer) => {
                let text = String::from_utf8_lossy(&answer.body);
                let code = inside(&text, "Code").unwrap_or("no code");
                let said = inside(&text, "Message").unwrap_or("no message");
                let what = format!("the service answers {} {code}: {said}", answer.status);
                (what, cause(answer.status, code))
            }
            Self::Unreached(ureq::Error::Timeout(_)) => (
                format!("the service did not answer within {seconds} s"),
                Cause::Silent,
            ),
            Self::Unreached(e) if untrusted(&e) => (
                format!("there is no trusted connection to the service: {e}"),
                Cause::Untrusted,
            ),
            Self::Unreached(e) => (
                format!("the service cannot be reached, tried for {seconds} s: {e}"),
                Cause::Unreached,
            ),
        };
        ObjectError::Service {
            op,
            bucket: bucket.into(),
            key: key.into(),
            what,
            cause,
        }
    }
}

/// Whether TLS came to nothing; it says so through an I/O error, too.
fn untrusted(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => true,
        ureq::Error::Io(e) => e.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

fn cause(status: u16, code: &str) -> Cause {
    match (status, code) {
        (_, "NoSuchBucket") => Cause::NoBucket,
        (401 | 403, _) => Cause::Denied,
        (301 | 307, _) => Cause::Elsewhere,
        (507, _) | (_, "QuotaExceeded" | "XMinioStorageFull") => Cause::Full,
        (404, _) => Cause::Gone,
        _ => Cause::Other,
    }
}

/// The text between `<tag>` and `</tag>`.
fn inside<'t>(text: &'t str, tag: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>"))
        .map(|(inside, _)| inside)
}
