//! Plain tables: columns as wide as their longest cell, two spaces between.

use comfy_table::presets::NOTHING;

/// Rows of cells below a header.
#[derive(Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// A table with these column names.
    pub fn new(header: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(NOTHING).set_header(header);
        Self(table)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter());
    }

    /// The lines of the table.
    pub fn render(&self) -> String {
        let mut table = self.0.clone();
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.trim_fmt() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&["NAME", "SIZE"]);
        t.row(["a-long-name".to_owned(), "1".to_owned()]);
        t.row(["名".to_owned(), String::new()]);
        assert_eq!(t.render(), "NAME         SIZE\na-long-name  1\n名\n");
    }

    #[test]
    fn a_row_may_have_more_cells_than_the_header() {
        let mut t = Table::new(&["NAME"]);
        t.row(["a".to_owned(), "b".to_owned()]);
        assert_eq!(t.render(), "NAME\na     b\n");
    }
}
