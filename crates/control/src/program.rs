//! What a program of a session asks of the daemon: `import fermata` in Python, `fermata_program.h` in C.
//!
//! ```text
//!  program ── datagram, with the writing end of a pipe ──► daemon
//!          ◄────────── one answer, through the pipe ──────
//! ```
//! No connection: a program may be dumped in the middle of a question. Its end of the pipe can be dumped and has no writer
//! when it comes back, so the program reads the end at once and asks the daemon that there is then. A question asked twice
//! does nothing twice.
//!
//! Both are lines of text, which C reads without a library:
//!
//! | question | answers |
//! | --- | --- |
//! | `fermata 1`, token, `session` | `session`, name, folder of the image it came from or nothing |
//! | `fermata 1`, token, `ready` | `done` |
//! | `fermata 1`, token, `checkpoint ID MODE`, name of the image or nothing | as `status` |
//! | `fermata 1`, token, `status ID` | `taking`; `taken`, folder; `failed`, message, hint; `unknown` |
//! | `fermata 1`, token, `room DEVICE BYTES FREE` (the library's, when there is no device memory; FREE may be `-`) | `done` when a session of lower priority was paused for it, else `refused` |
//! | anything | `refused`, why |
//!
//! A peer's bytes are hostile: a question has a limit, and what does not fit is refused.

use crate::user::Mode;

/// Name of the daemon's socket, in the folder of its socket for agents.
pub const SOCKET: &str = "program.sock";
/// The most bytes of a question and of an answer: a pipe takes them at once.
pub const MOST_BYTES: usize = 4096;
/// The first line of a question.
const HEAD: &str = "fermata 1";
/// The most characters that name a checkpoint.
const MOST_ID: usize = 64;

/// What a program asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The session's token as far as the program knows it: that of its first start.
    pub token: String,
    /// What.
    pub about: About,
}

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// Which session this is.
    Session,
    /// The program is ready for what it is to do.
    Ready,
    /// Take an image, unless that has been asked for under the same `id`.
    Checkpoint {
        /// Chosen by the program.
        id: String,
        /// How.
        mode: Mode,
        /// Leave out TCP connections to others, instead of refusing.
        tcp_close: bool,
        /// A name in the folder of images.
        name: Option<String>,
    },
    /// How far that is.
    Status {
        /// As above.
        id: String,
    },
    /// Pause a session of lower priority: there is no device memory.
    Room {
        /// Number of the device among those of the process's worker.
        device: u32,
        /// Bytes that are wanted.
        bytes: u64,
        /// Bytes of it that are free, if that is known.
        free: Option<u64>,
    },
}

/// What a program is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The session, and the folder of the image it came from.
    Session {
        /// Its name.
        name: String,
        /// The folder.
        image: Option<String>,
    },
    /// It is noted down.
    Done,
    /// The image is being taken.
    Taking,
    /// The image is complete.
    Taken {
        /// Its folder.
        image: String,
    },
    /// There is no image; the program goes on as before.
    Failed {
        /// Why.
        message: String,
        /// What to do.
        hint: String,
    },
    /// No such checkpoint has been asked for, of this daemon.
    Unknown,
    /// The question cannot be answered.
    Refused {
        /// Why.
        why: String,
    },
}

/// Whether an answer is that it is done.
pub fn is_done(answer: &[u8]) -> bool {
    answer == Answer::Done.encode().as_bytes()
}

impl Question {
    /// As it travels.
    pub fn encode(&self) -> String {
        let about = match &self.about {
            About::Session => "session".to_owned(),
            About::Ready => "ready".to_owned(),
            About::Checkpoint {
                id,
                mode,
                tcp_close,
                name,
            } => {
                let name = name.as_deref().unwrap_or("");
                let close = if *tcp_close { " tcp-close" } else { "" };
                format!("checkpoint {id} {}{close}\n{name}", mode.name())
            }
            About::Status { id } => format!("status {id}"),
            About::Room {
                device,
                bytes,
                free,
            } => {
                let free = free.map_or_else(|| "-".to_owned(), |it| it.to_string());
                format!("room {device} {bytes} {free}")
            }
        };
        format!("{HEAD}\n{}\n{about}\n", self.token)
    }

    /// Reads a question.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the question is no text")?;
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err("the daemon answers questions that begin with `fermata 1`");
        }
        let token = lines.next().unwrap_or_default().to_owned();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let about = match words.next() {
            Some("session") => About::Session,
            Some("ready") => About::Ready,
            Some("checkpoint") => About::Checkpoint {
                id: id(words.next())?,
                mode: mode(words.next())?,
                tcp_close: match words.next() {
                    None => false,
                    Some("tcp-close") => true,
                    Some(_) => return Err("there is no such way to take an image"),
                },
                name: lines.next().filter(|it| !it.is_empty()).map(str::to_owned),
            },
            Some("status") => About::Status {
                id: id(words.next())?,
            },
            Some("room") => About::Room {
                device: number(words.next())?,
                bytes: number(words.next())?,
                free: match words.next() {
                    Some("-") => None,
                    word => Some(number(word)?),
                },
            },
            _ => return Err("there is no such question"),
        };
        match words.next() {
            None => Ok(Self { token, about }),
            Some(_) => Err("the question has more words than it may have"),
        }
    }
}

fn number<T: std::str::FromStr>(word: Option<&str>) -> Result<T, &'static str> {
    let number = word.and_then(|it| it.parse().ok());
    number.ok_or("the question lacks a number")
}

fn id(word: Option<&str>) -> Result<String, &'static str> {
    let fits = |it: &&str| {
        !it.is_empty() && it.len() <= MOST_ID && it.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let word = word.filter(fits).map(str::to_owned);
    word.ok_or("a checkpoint is named by 1 to 64 letters and digits")
}

fn mode(word: Option<&str>) -> Result<Mode, &'static str> {
    let modes = [
        Mode::Auto,
        Mode::Stop,
        Mode::Snapshot,
        Mode::Cow,
        Mode::Recopy,
    ];
    let found = modes.into_iter().find(|it| Some(it.name()) == word);
    found.ok_or("the mode is auto, stop, snapshot, cow or recopy")
}

impl Answer {
    /// As it travels.
    pub fn encode(&self) -> String {
        let line = |text: &str| text.replace('\n', " ");
        let mut text = match self {
            Self::Session { name, image } => {
                format!(
                    "session\n{}\n{}",
                    line(name),
                    image.as_deref().unwrap_or("")
                )
            }
            Self::Done => "done".to_owned(),
            Self::Taking => "taking".to_owned(),
            Self::Taken { image } => format!("taken\n{image}"),
            Self::Failed { message, hint } => format!("failed\n{}\n{}", line(message), line(hint)),
            Self::Unknown => "unknown".to_owned(),
            Self::Refused { why } => format!("refused\n{}", line(why)),
        };
        let most = (0..MOST_BYTES).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(most.unwrap_or(0));
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read() {
        let read = |text: &str| Question::parse(text.as_bytes()).map(|it| it.about);
        assert_eq!(read("fermata 1\nt\nsession\n"), Ok(About::Session));
        assert_eq!(read("fermata 1\nt\nready\n"), Ok(About::Ready));
        let id = || "a1".to_owned();
        let about = About::Checkpoint {
            id: id(),
            mode: Mode::Cow,
            tcp_close: false,
            name: Some("x".to_owned()),
        };
        assert_eq!(read("fermata 1\nt\ncheckpoint a1 cow\nx\n"), Ok(about));
        let closing = Question {
            token: "t".to_owned(),
            about: About::Checkpoint {
                id: id(),
                mode: Mode::Auto,
                tcp_close: true,
                name: None,
            },
        };
        assert_eq!(Question::parse(closing.encode().as_bytes()), Ok(closing));
        assert_eq!(
            read("fermata 1\nt\nstatus a1\n"),
            Ok(About::Status { id: id() })
        );
        for free in [None, Some(3)] {
            let question = Question {
                token: "t".to_owned(),
                about: About::Room {
                    device: 1,
                    bytes: 2,
                    free,
                },
            };
            let back = Question::parse(question.encode().as_bytes());
            assert_eq!(back, Ok(question));
        }
        assert!(is_done(Answer::Done.encode().as_bytes()) && !is_done(b"refused\n"));
    }

    #[test]
    fn what_is_no_question_is_refused() {
        for text in [
            "",
            "fermata 2\nt\nsession\n",
            "fermata 1\nt\n",
            "fermata 1\nt\nstatus\n",
            "fermata 1\nt\nstatus ../x\n",
            "fermata 1\nt\nstatus a b\n",
            "fermata 1\nt\ncheckpoint a\n",
            "fermata 1\nt\ncheckpoint a fast\n",
            "fermata 1\nt\ncheckpoint a cow tcp\n",
            "fermata 1\nt\ncheckpoint a cow tcp-close x\n",
            "fermata 1\nt\nkill a\n",
            "fermata 1\nt\nroom 0 1\n",
            "fermata 1\nt\nroom 0 x -\n",
        ] {
            assert!(Question::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        let long = format!("fermata 1\nt\nstatus {}\n", "a".repeat(65));
        assert!(Question::parse(long.as_bytes()).is_err());
        assert!(Question::parse(b"fermata 1\n\xff\nsession\n").is_err());
    }

    #[test]
    fn answers_are_lines_and_fit_into_a_pipe() {
        let failed = Answer::Failed {
            message: "a\nb".to_owned(),
            hint: "é".repeat(MOST_BYTES),
        };
        let text = failed.encode();
        assert!(text.starts_with("failed\na b\n") && text.ends_with('\n'));
        assert!(text.len() <= MOST_BYTES);
        let image = Some("/x".to_owned());
        let name = "n".to_owned();
        assert_eq!(Answer::Session { name, image }.encode(), "session\nn\n/x\n");
    }
}
