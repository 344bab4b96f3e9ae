//! `fermata doctor --settings`: every setting, its value, and where the value comes from.

use fermata_control::Paths;
use fermata_control::settings::{self, Origin, Reader, Setting};
use fermata_control::user::SettingValue;
use fermata_report::table::Table;
use serde::Serialize;

/// A setting as it is shown.
#[derive(Debug, Serialize)]
pub struct Row {
    name: &'static str,
    value: String,
    from: String,
    read_by: &'static str,
    /// What the daemon that runs has instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<String>,
}

/// The settings of this command; `daemon` are those that the running daemon was started with.
pub fn rows(daemon: Option<&[SettingValue]>) -> Vec<Row> {
    let paths = Paths::find();
    let row = |setting: &'static Setting| {
        let (value, origin) = settings::find_value(setting.name);
        let value = value.map(|it| it.to_string_lossy().into_owned());
        Row {
            name: setting.name,
            from: origin.to_string(),
            read_by: setting.reader.name(),
            daemon: daemon.and_then(|set| other(setting, value.as_deref(), set)),
            value: match origin {
                Origin::Default => usual(setting, &paths),
                _ => value.unwrap_or_default(),
            },
        }
    };
    settings::public().map(row).collect()
}

/// The rows as a table.
pub fn render(rows: &[Row]) -> String {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for row in rows {
        table.row([row.name.into(), row.value.clone(), row.from.clone()]);
        if let Some(value) = &row.daemon {
            let text = format!("the running daemon: {value}");
            table.row([String::new(), text, String::new()]);
        }
    }
    table.render()
}

/// What holds without a value.
fn usual(setting: &Setting, paths: &Paths) -> String {
    let folder = match setting.name {
        "FERMATA_RUNTIME_DIR" => Some(&paths.runtime),
        "FERMATA_IMAGE_DIR" => Some(&paths.images),
        "FERMATA_HOME" => Some(&paths.home),
        _ => None,
    };
    folder.map_or_else(
        || setting.default.replace('`', ""),
        |it| it.display().to_string(),
    )
}

/// The daemon's value where it is another one. The folders it was told by the command that started it; that it was
/// found says that they are the same.
fn other(setting: &Setting, own: Option<&str>, daemon: &[SettingValue]) -> Option<String> {
    let told = ["FERMATA_RUNTIME_DIR", "FERMATA_IMAGE_DIR", "FERMATA_HOME"];
    if setting.reader != Reader::Daemon && setting.reader != Reader::All {
        return None;
    }
    let set = daemon.iter().find(|it| it.name == setting.name);
    let value = set.map(|it| it.value.as_str());
    if value == own || own.is_none() && told.contains(&setting.name) {
        return None;
    }
    Some(value.map_or_else(|| setting.default.replace('`', ""), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_with_another_value_is_told() {
        let set = |name: &str, value: &str| SettingValue {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let cache = settings::public()
            .find(|it| it.name == "FERMATA_CACHE")
            .expect("a setting");
        assert_eq!(
            other(cache, Some("1G"), &[set("FERMATA_CACHE", "1G")]),
            None
        );
        assert_eq!(other(cache, None, &[]), None);
        let told = other(cache, None, &[set("FERMATA_CACHE", "2G")]);
        assert_eq!(told.as_deref(), Some("2G"));
        assert_eq!(other(cache, Some("1G"), &[]).as_deref(), Some("none"));
    }
}
