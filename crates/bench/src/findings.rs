//! What a bench has found: a table of medians, every run as CSV, a plot, a JSON document.

use serde_json::{Map, Value, json};

use fermata_report::svg::{Plot, Series};
use fermata_report::table::Table;

/// A result of one run.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A case's name.
    Name(String),
    /// A number in its column's unit.
    Number(f64),
    /// Not measured.
    None,
}

impl From<&str> for Cell {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() {
            Self::Number(number)
        } else {
            Self::None
        }
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::None, Self::from)
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Number(number) if number.fract() == 0.0 => format!("{number:.0}"),
            Self::Number(number) if number.abs() < 10.0 => format!("{number:.3}"),
            Self::Number(number) => format!("{number:.1}"),
            Self::None => "-".into(),
        }
    }

    fn csv(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Number(number) => number.to_string(),
            Self::None => String::new(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Name(name) => json!(name),
            Self::Number(number) => json!(number),
            Self::None => Value::Null,
        }
    }
}

/// What a bench has found.
pub struct Findings {
    /// The bench, which its files are named after.
    pub name: &'static str,
    /// Of the plot.
    pub title: &'static str,
    /// `soft` or the GPU's name, and what else holds for all runs.
    pub facts: Vec<(&'static str, Value)>,
    /// Names of the columns, with their unit. The first tells the cases apart.
    pub columns: Vec<&'static str>,
    /// All runs.
    pub rows: Vec<Vec<Cell>>,
    /// The column for the plot's horizontal axis, and those to draw; cases with names are counted.
    pub drawn: (&'static str, Vec<&'static str>),
    /// A column of names: the first column to draw has a line for each of them, instead of one for each column.
    pub lines: Option<&'static str>,
    /// What the numbers say about what limits them.
    pub remarks: Vec<String>,
}

impl Findings {
    /// The table of medians.
    pub fn table(&self) -> String {
        let mut table = Table::new(&self.columns);
        for row in self.medians() {
            table.row(row.iter().map(Cell::text));
        }
        table.render()
    }

    /// One row for each case, in the order in which they first came.
    fn medians(&self) -> Vec<Vec<Cell>> {
        let mut cases: Vec<&Cell> = Vec::new();
        for row in &self.rows {
            if !cases.contains(&&row[0]) {
                cases.push(&row[0]);
            }
        }
        let of_case = |case: &Cell| {
            let rows: Vec<_> = self.rows.iter().filter(|row| row[0] == *case).collect();
            let column = |at: usize| middle(rows.iter().map(|row| &row[at]));
            (0..self.columns.len()).map(column).collect()
        };
        cases.into_iter().map(of_case).collect()
    }

    /// Every run, a line each.
    pub fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let header = line(self.columns.iter().map(|it| (*it).to_owned()).collect());
        let rows = self.rows.iter();
        header
            + &rows
                .map(|row| line(row.iter().map(Cell::csv).collect()))
                .collect::<String>()
    }

    /// The plot of the medians.
    pub fn svg(&self) -> String {
        let medians = self.medians();
        let (x, lines) = &self.drawn;
        let at = |name: &str| self.columns.iter().position(|it| *it == name).unwrap_or(0);
        let number = |cell: &Cell| match cell {
            Cell::Number(number) => Some(*number),
            _ => None,
        };
        let line = |name: &'static str, of: &dyn Fn(&[Cell]) -> bool| {
            let rows = medians.iter().enumerate().filter(|(_, row)| of(row));
            let mut points: Vec<(f64, f64)> = rows
                .filter_map(|(place, row)| {
                    let across = number(&row[at(x)]).unwrap_or(place as f64);
                    Some((across, number(&row[at(name)])?))
                })
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let mut cases: Vec<&Cell> = Vec::new();
        for row in &medians {
            if let Some(case) = self.lines.map(|name| &row[at(name)])
                && !cases.contains(&case)
            {
                cases.push(case);
            }
        }
        let legend: Vec<String> = cases.iter().map(|it| it.text()).collect();
        let of_case = |(case, name): (&Cell, _)| {
            let is_its = |row: &[Cell]| self.lines.is_some_and(|it| row[at(it)] == *case);
            let points = lines.first().map(|column| line(column, &is_its));
            Series {
                name,
                points: points.unwrap_or_default(),
            }
        };
        let of_column = |name: &&'static str| Series {
            name,
            points: line(name, &|_| true),
        };
        let series: Vec<Series<'_>> = match self.lines {
            Some(_) => {
                let cases = cases.iter().copied().zip(legend.iter().map(String::as_str));
                cases.map(of_case).collect()
            }
            None => lines.iter().map(of_column).collect(),
        };
        let named = medians.iter().map(|row| &row[at(x)]);
        let names: Vec<String> = named
            .filter(|it| number(it).is_none())
            .map(Cell::text)
            .collect();
        let across = if names.is_empty() {
            (*x).to_owned()
        } else {
            names.join(", ")
        };
        Plot {
            title: self.title,
            x: &across,
            y: lines.first().copied().unwrap_or(""),
            series,
        }
        .render()
    }

    /// Medians and runs as JSON.
    pub fn document(&self) -> Value {
        let medians = self.medians();
        let object = |row: &Vec<Cell>| -> Value {
            let fields = self.columns.iter().zip(row);
            let fields = fields.map(|(name, cell)| ((*name).to_owned(), cell.json()));
            fields.collect::<Map<_, _>>().into()
        };
        let facts: Map<_, _> = self
            .facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        json!({
            "bench": self.name,
            "facts": facts,
            "medians": medians.iter().map(object).collect::<Vec<_>>(),
            "runs": self.rows.iter().map(object).collect::<Vec<_>>(),
            "remarks": self.remarks,
        })
    }
}

/// The median of numbers, the commonest of names.
fn middle<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Cell {
    let numbers: Vec<f64> = cells
        .clone()
        .filter_map(|it| match it {
            Cell::Number(number) => Some(*number),
            _ => None,
        })
        .collect();
    if let Some(median) = median(&numbers) {
        return Cell::Number(median);
    }
    let count = |cell: &Cell| cells.clone().filter(|it| *it == cell).count();
    let names = cells.clone().filter(|it| **it != Cell::None);
    names
        .max_by_key(|it| count(it))
        .cloned()
        .unwrap_or(Cell::None)
}

/// The median; none of none.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_one_row_of_medians() {
        let row = |case: f64, ms: f64, limit: &str| vec![case.into(), ms.into(), limit.into()];
        let report = Findings {
            name: "pool",
            title: "t",
            facts: vec![("device", json!("soft"))],
            columns: vec!["pool_mib", "stall_ms", "limit"],
            rows: vec![
                row(0.0, 9.0, "waiting"),
                row(64.0, 1.0, "host"),
                row(0.0, 5.0, "waiting"),
                row(0.0, 7.0, "host"),
            ],
            drawn: ("pool_mib", vec!["stall_ms"]),
            lines: None,
            remarks: Vec::new(),
        };
        let medians = report.medians();
        assert_eq!(medians, [row(0.0, 7.0, "waiting"), row(64.0, 1.0, "host")]);
        assert_eq!(report.csv().lines().count(), 5);
        assert!(
            report
                .csv()
                .starts_with("pool_mib,stall_ms,limit\n0,9,waiting\n")
        );
        assert!(report.svg().contains("polyline"));
        assert_eq!(report.document()["medians"][0]["stall_ms"], 7.0);
    }

    #[test]
    fn each_name_of_the_column_of_lines_has_a_line() {
        let row = |case: &str, size: f64, way: &str| {
            vec![case.into(), size.into(), way.into(), (size * 2.0).into()]
        };
        let report = Findings {
            name: "start",
            title: "t",
            facts: Vec::new(),
            columns: vec!["case", "billions", "way", "first_ms"],
            rows: vec![
                row("1 cold", 1.0, "cold"),
                row("1 eager", 1.0, "eager"),
                row("2 cold", 2.0, "cold"),
            ],
            drawn: ("billions", vec!["first_ms"]),
            lines: Some("way"),
            remarks: Vec::new(),
        };
        let plot = report.svg();
        assert_eq!(plot.matches("<polyline").count(), 2);
        assert!(plot.contains(">cold</text>") && plot.contains(">eager</text>"));
    }

    #[test]
    fn what_was_not_measured_is_no_number() {
        assert_eq!(Cell::from(f64::NAN), Cell::None);
        assert_eq!(middle([Cell::None].iter()), Cell::None);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0, 9.0]), Some(2.0));
    }
}
